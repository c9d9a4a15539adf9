// Package compat asks a real etcd and Hawser the same questions and wants the same answers.
//
// A seeded Generator makes a sequence of steps (requests of the KV, Watch, Maintenance and Cluster services, valid and invalid).
// A Runner sends each step to two endpoints over raw gRPC stubs, the real etcd first in every report, and compares the answers
// field by field, and what every watcher has received. Splits of Hawser's ranges are steps too; etcd does not see them.
//
// Only what exceptions.go lists may differ; docs/differences.md gives the reasons. A difference is reported with its seed and
// step and written to a file of steps that can be replayed and is shrunk on request:
//
//	HAWSER_COMPAT_OPS=100000    steps in a run (default 3000)
//	HAWSER_COMPAT_SEED=7        seed (default: fixed in short runs, else from the clock and printed)
//	HAWSER_COMPAT_LAYOUTS=1,100 numbers of ranges to run with (default 1,7,100)
//	HAWSER_COMPAT_TARGET=etcd   compares etcd with etcd (default hawser)
//	HAWSER_COMPAT_ALL=10        reports this many differences instead of the first
//	HAWSER_COMPAT_REPLAY=file   runs the steps of a file instead of generated ones
//	HAWSER_COMPAT_SHRINK=5m     how long to look for a shorter failing sequence (default 0: not at all)
//	HAWSER_COMPAT_OUT=dir       where step files go (default: the system's temporary directory)
package compat
