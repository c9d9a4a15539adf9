// Package testcluster runs nodes for tests: in the test's own process, where a
// test can reach inside (Node), or in a process of their own, whose memory can
// be measured and which can be killed (Process).
//
// A test changes the world through three seams only: the disk (Options.FS), the
// network (Node.Dial, which clients dial through) and time (the length of a
// tick). Everything else is what a user runs.
package testcluster
