package counts

import "bytes"

// Starts returns where runs begin inside of (start, end), ascending; end nil is
// the end of the keyspace. With pages those of every hundredth or so: there is one
// for about 100,000 keys. The caller changes none of them.
func (x *Index) Starts(start, end []byte, pages bool) (starts [][]byte) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	add := func(key []byte) (more bool) {
		if end != nil && bytes.Compare(key, end) >= 0 {
			return false
		}
		if bytes.Compare(key, start) > 0 {
			starts = append(starts, key)
		}
		return true
	}
	for pi := x.findPageLocked(start); pi < len(x.mu.pages); pi++ {
		p := x.mu.pages[pi]
		if pages {
			if !add(p.runs[0].start) {
				return starts
			}
			continue
		}
		for _, r := range p.runs {
			if !add(r.start) {
				return starts
			}
		}
	}
	return starts
}
