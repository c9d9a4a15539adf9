// Package simulation runs whole nodes in one thread, on virtual time, from one
// seed: every step (a round of the store, the end of a sync, a tick, a timer, a
// client's request, a crash) is chosen by the seed, so a failing seed replays
// exactly. What clients saw is checked by tests/history.
//
// A world has nodes, a disk per node and a clock; this release has one node,
// and the disk is the crashable in-memory file system.
package simulation
