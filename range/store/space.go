package store

import (
	"fmt"

	"go.uber.org/zap"
)

// LowSpace says whether the disk has less room than the reserve, or the quota is
// used up. Members then refuse, with ErrNoSpace, writes that add data; deletes,
// compactions and what is under way go on, so that the engine itself does not run
// out of room. It ends when there is a quarter more room than the reserve, and a
// sixteenth of the quota. Safe for concurrent use.
func (s *Store) LowSpace() bool { return s.low.Load() }

// PollSpace looks how much room there is. Start does it every tick.
func (s *Store) PollSpace() error {
	if err := s.pollDisk(); err != nil {
		return err
	}
	s.pollQuota()
	s.low.Store(s.lowDisk || s.lowQuota)
	return nil
}

func (s *Store) pollDisk() error {
	if s.cfg.FreeBytes == nil {
		return nil
	}
	free, err := s.cfg.FreeBytes()
	if err != nil {
		return fmt.Errorf("store: free space: %w", err)
	}
	enough := s.cfg.ReserveBytes
	if s.lowDisk {
		enough += enough / 4
	}
	if low := free < enough; low != s.lowDisk {
		s.lowDisk = low
		s.cfg.Logger.Warn("room on disk", zap.Bool("low", low), zap.Uint64("free-bytes", free),
			zap.Uint64("reserve-bytes", s.cfg.ReserveBytes))
	}
	return nil
}

func (s *Store) pollQuota() {
	quota := s.cfg.QuotaBytes
	if quota <= 0 {
		return
	}
	used, bound := s.cfg.UsedBytes(), quota
	if s.lowQuota {
		bound -= quota / 16
	}
	if low := used >= bound; low != s.lowQuota {
		s.lowQuota = low
		s.cfg.Logger.Warn("room under the quota", zap.Bool("low", low), zap.Int64("used-bytes", used),
			zap.Int64("quota-bytes", quota))
	}
}
