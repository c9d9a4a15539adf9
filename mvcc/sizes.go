package mvcc

import "bytes"

// halfSamples bounds what HalfKey keeps in memory while it reads a span.
const halfSamples = 4096

// sizes samples a scan: places between two keys with the bytes that stand before
// them, at about even distances in bytes.
type sizes struct {
	samples []sample
	total   int
	step    int
	// last is the key before the next one, nil before the first.
	last []byte
}

// sample is a place where the scan may be cut: key is the shortest boundary there.
type sample struct {
	key    []byte
	before int
}

// add takes the next key of the scan, which may change after the call.
func (s *sizes) add(key []byte, size int) {
	// Before the first key there is no place: the left half would be empty.
	if s.last != nil && (len(s.samples) == 0 || s.total-s.samples[len(s.samples)-1].before >= s.step) {
		s.samples = append(s.samples, sample{boundaryBetween(s.last, key), s.total})
		if len(s.samples) == halfSamples {
			s.step = max(2*s.step, 2*s.total/halfSamples)
			kept := s.samples[:1]
			for _, x := range s.samples[1:] {
				if x.before-kept[len(kept)-1].before >= s.step {
					kept = append(kept, x)
				}
			}
			s.samples = kept
		}
	}
	s.last = append(s.last[:0], key...)
	s.total += size
}

// boundaryBetween returns the shortest key above left and not above right, which is above
// left: the beginning of right that is no beginning of left. Any shorter one that is
// not above right is not above left either.
func boundaryBetween(left, right []byte) []byte {
	n := 0
	for n < len(left) && left[n] == right[n] {
		n++
	}
	return bytes.Clone(right[:n+1])
}

// half returns the boundary of the sample nearest to the middle, nil without any.
func (s *sizes) half() []byte {
	var best []byte
	distance := 0
	for _, x := range s.samples {
		d := x.before - s.total/2
		if d < 0 {
			d = -d
		}
		if best == nil || d < distance {
			best, distance = x.key, d
		}
	}
	return best
}
