// Package watch merges what the ranges of a node apply into one stream of
// events in revision order and hands it to watchers.
//
// The Frontier says up to which revision a span is complete, the Hub decides
// what each watcher may be sent, and the Service drives them. Nothing here
// knows of Raft or of gRPC.
package watch
