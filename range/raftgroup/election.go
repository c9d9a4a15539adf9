package raftgroup

import "go.etcd.io/raft/v3/raftpb"

// electionTimer says when a replica that does not lead acts on the silence of
// its leader. raft could do that by itself, but draws its timeouts from a source
// that nobody can seed, so that no simulation would repeat. So raft's own clock
// runs for leaders only (heartbeats, CheckQuorum, the end of a transfer), and
// followers and candidates have this one:
//
//	ticks of silence   0 ........ ElectionTicks ........ timeout
//	                   believes    forgets the leader     campaigns, draws again
//	                   the leader  and votes for others
//
// As in raft, the timeout lies in [ElectionTicks, 2*ElectionTicks), and a
// replica does not vote against a leader that it has heard within ElectionTicks
// (section 9.6 of the Raft dissertation).
type electionTimer struct {
	ticks   int // ElectionTicks
	elapsed int // ticks of silence
	timeout int
	drawn   uint64 // state of the source of timeouts
}

// newElectionTimer returns a timer whose timeouts follow from the seed, the
// group and the replica alone.
func newElectionTimer(ticks int, seed, group, replica uint64) electionTimer {
	t := electionTimer{ticks: ticks, drawn: seed ^ mix(group) ^ mix(mix(replica))}
	t.restart()
	return t
}

// heard says that the leader spoke.
func (t *electionTimer) heard() { t.elapsed = 0 }

// restart begins anew with another timeout: a term, a vote, a role has changed.
func (t *electionTimer) restart() {
	t.elapsed = 0
	t.drawn += 0x9e3779b97f4a7c15 // the odd step of splitmix64
	t.timeout = t.ticks + int(mix(t.drawn)%uint64(t.ticks))
}

// tick passes one tick of silence and says what is to be done now.
func (t *electionTimer) tick() (forget, campaign bool) {
	t.elapsed++
	forget = t.elapsed == t.ticks
	if campaign = t.elapsed >= t.timeout; campaign {
		t.restart()
	}
	return forget, campaign
}

// mix is the output function of splitmix64 (Steele, Lea and Flood, "Fast
// splittable pseudorandom number generators", 2014).
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// fromLeader says that only the leader of a message's term sends such a message.
func fromLeader(m *raftpb.Message) bool {
	switch m.GetType() {
	case raftpb.MsgApp, raftpb.MsgHeartbeat, raftpb.MsgSnap:
		return true
	}
	return false
}
