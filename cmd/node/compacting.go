package node

// compacting is the data as the compactor writes to it: not after a fault of the
// engine, and one that it meets itself is an error.
type compacting struct{ c *Core }

func (s compacting) Forgotten() int64 { return s.c.MVCC.Forgotten() }

func (s compacting) Backlog() int64 { return s.c.MVCC.Backlog() }

func (s compacting) SetForgotten(rev int64) error {
	return s.c.engine.Fault.Write(func() error { return s.c.MVCC.SetForgotten(rev) })
}

func (s compacting) CompactStep(maxEvents int) (done bool, err error) {
	err = s.c.engine.Fault.Write(func() error {
		done, err = s.c.MVCC.CompactStep(maxEvents)
		return err
	})
	return done, err
}
