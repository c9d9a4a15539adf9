package replica

import "github.com/hawser-kv/hawser/mvcc"

// EncodeWriteForTesting is a Raft entry with one write.
func EncodeWriteForTesting(term, epoch uint64, revision int64, effects []mvcc.Effect) []byte {
	return appendWrite(appendEntryHeader(nil, entryHeader{term: term, epoch: epoch, seq: 1}), revision, effects)
}
