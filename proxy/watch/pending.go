package watch

// PendingEvents returns how many events are in the queues of streams, not taken
// yet.
func (s *Service) PendingEvents() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for stream := range s.mu.streams {
		for _, r := range stream.out {
			n += r.NumEvents()
		}
	}
	return n
}
