// Package history records what clients asked a server and what they were told,
// and checks it against what etcd promises: one serial history ordered by
// revision that explains every answer and every event of every watch, and that
// agrees with real time (revisions.md section 1; guarantees history/K1 to history/K3 and history/W1 to history/W9 of
// etcd's robustness tests).
//
// The truth is the stream of one watch over everything. Values are unique, so
// each of its revisions belongs to one request.
package history
