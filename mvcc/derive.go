package mvcc

import "bytes"

// Deriver makes, from version rows alone, the rows that Apply writes beside
// them: events, without their prior, and the lease index. Who receives the
// versions of a span by other means, a snapshot of a range, feeds them to it in
// the engine's order.
type Deriver struct {
	prefix     []byte // of the user key of the last version
	key, value []byte
}

// Rows calls set for each row that belongs to a version row; key and value are
// good during the call. isVersion is false, and nothing is set, if the row is no
// version.
func (d *Deriver) Rows(key, row []byte, set func(key, value []byte) error) (isVersion bool, err error) {
	prefix, rev, sub, ok := splitVersionKey(key)
	if !ok {
		return false, nil
	}
	v, err := decodeVersionValue(row, rev)
	if err != nil {
		return true, err
	}
	kind := eventPut
	switch {
	case v.tombstone:
		kind = eventDelete
	case v.version == 1:
		kind = eventCreate
	}
	d.key = appendEventKey(d.key[:0], rev, sub, nil)
	if d.key, err = appendUserKey(d.key, prefix); err != nil {
		return true, err
	}
	d.value = appendEventValue(d.value[:0], rev, eventValue{kind: kind})
	if err := set(d.key, d.value); err != nil {
		return true, err
	}
	newest := !bytes.Equal(prefix, d.prefix)
	d.prefix = append(d.prefix[:0], prefix...)
	if !newest || v.lease == 0 {
		return true, nil
	}
	d.key = appendLeaseKey(d.key[:0], v.lease, nil)
	if d.key, err = appendUserKey(d.key, prefix); err != nil {
		return true, err
	}
	return true, set(d.key, leaseRow)
}
