package node

import "github.com/hawser-kv/hawser/mvcc"

// compacting is the data as the compactor and the materialiser write to it: not after
// a fault of the engine, and one that they meet themselves is an error.
type compacting struct{ c *Core }

func (s compacting) Forgotten() int64 { return s.c.MVCC.Forgotten() }

func (s compacting) Backlog() int64 { return s.c.MVCC.Backlog() }

func (s compacting) SetForgotten(rev int64) error {
	return s.c.engine.Fault.Write(func() error { return s.c.MVCC.SetForgotten(rev) })
}

func (s compacting) Pending() int64 { return s.c.MVCC.Pending() }

func (s compacting) MaterialiseStep(maxKeys int) (did mvcc.Materialised, err error) {
	err = s.c.engine.Fault.Write(func() error {
		did, err = s.c.MVCC.MaterialiseStep(maxKeys)
		return err
	})
	return did, err
}

func (s compacting) CompactStep(maxEvents int) (done bool, err error) {
	err = s.c.engine.Fault.Write(func() error {
		done, err = s.c.MVCC.CompactStep(maxEvents)
		return err
	})
	return done, err
}
