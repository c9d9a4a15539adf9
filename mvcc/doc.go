// Package mvcc keeps the data of one etcd keyspace, or of the part of it that a
// node has, at every revision that is not forgotten, in a Pebble engine.
//
// It evaluates etcd's requests against a view into effects (Evaluate), applies
// effects at a granted revision (Store.Apply), and reads: states at a revision
// (View), events between revisions (Store.Events), exact counts, hashes. What
// it answers is what etcd 3.7 answers for the same history.
//
// It knows no Raft, no network and no clock: the same calls in the same order
// give the same result on every replica. DESIGN.md has the ideas.
package mvcc
