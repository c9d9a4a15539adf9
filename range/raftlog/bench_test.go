package raftlog

import (
	"bytes"
	"fmt"
	"testing"

	"go.etcd.io/raft/v3/raftpb"
)

// BenchmarkAppend stages one entry, its applied state and, now and then, a
// truncation; the batch is dropped.
func BenchmarkAppend(b *testing.B) {
	for _, size := range []int{64, 1024, 64 << 10} {
		b.Run(fmt.Sprint("bytes=", size), func(b *testing.B) {
			db := openDB(b)
			l := newGroup(b, db, testGroup, 1)
			data := string(bytes.Repeat([]byte("x"), size))
			batch := db.NewBatch()
			machine := appendMachine("12345678")
			entries := make([]*raftpb.Entry, 1)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			index := uint64(InitialIndex)
			for b.Loop() {
				index++
				entries[0] = entry(index, 1, data)
				must(b, l.Append(batch, entries))
				must(b, l.SetApplied(batch, index, 1, 0, machine))
				if index%64 == 0 {
					must(b, l.Truncate(batch, index))
				}
				if batch.Len() > 1<<20 {
					must(b, batch.Close())
					batch = db.NewBatch()
				}
			}
			must(b, batch.Close())
		})
	}
}
