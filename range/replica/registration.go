package replica

import (
	"fmt"

	"github.com/hawser-kv/hawser/proto/placementpb"
)

// registration is the leader's (e, T, session) with the sequencer, how far it has come
// (R3), and what the leader says under it.
type registration struct {
	link          SequencerLink
	rangeID, term uint64

	phase          regPhase
	e, session     uint64
	firstSeq       uint64 // of grants asked under it
	r0             int64
	resolveIn      uint64 // proposal with its Resolve(r0)
	notBefore      uint64 // tick before which it is not asked again
	refusedAlready bool   // logged
}

type regPhase uint8

const (
	regNone  regPhase = iota
	regAsked          // Register is sent
	regOpen           // Registered; grants flow
)

// newRegistration returns one that is not asked for yet. e and session are 0 while the node
// has no session.
func newRegistration(link SequencerLink, rangeID, term, e, session uint64) registration {
	return registration{link: link, rangeID: rangeID, term: term, e: e, session: session}
}

func (g *registration) String() string {
	return fmt.Sprintf("%s e=%d session=%d", [...]string{"unregistered", "registering", "registered"}[g.phase], g.e, g.session)
}

// current reports that the node's session is still that of the registration.
func (g *registration) current() bool {
	e, session, ok := g.link.Session()
	return ok && e == g.e && session == g.session
}

// latchesOpen reports that the Resolve of the registration is visible, given the last
// proposal that is: only then are latches given out (R3 c).
func (g *registration) latchesOpen(visibleSeq uint64) bool {
	return g.phase == regOpen && visibleSeq >= g.resolveIn
}

// send gives a message to the sequencer under the session.
func (g *registration) send(m *placementpb.ToSequencer) {
	m.Session = g.session
	g.link.Send(m)
}

// register asks for the registration of a range with an epoch.
func (g *registration) register(epoch uint64) {
	g.phase = regAsked
	g.send(&placementpb.ToSequencer{Body: &placementpb.ToSequencer_Register{Register: &placementpb.Register{
		RangeId: g.rangeID, Epoch: epoch, Term: g.term}}})
}

// ask asks for the revisions of count writes, the first of which is seq.
func (g *registration) ask(epoch, seq uint64, count int, leases []int64) {
	g.send(&placementpb.ToSequencer{Body: &placementpb.ToSequencer_Grant{Grant: &placementpb.GrantRequest{
		RangeId: g.rangeID, Epoch: epoch, Term: g.term, Seq: seq, Count: uint32(count), Leases: leases,
	}}})
}

// report says that a decided entry is committed in the log (R7).
func (g *registration) report(metaIndex uint64) {
	g.send(&placementpb.ToSequencer{Body: &placementpb.ToSequencer_Report{Report: &placementpb.Report{
		RangeId: g.rangeID, MetaIndex: metaIndex}}})
}

// abort asks for the end of the owner of a latch, if it has not committed (R7).
func (g *registration) abort(owner *placementpb.TxnID) {
	g.send(&placementpb.ToSequencer{Body: &placementpb.ToSequencer_TxnAbort{TxnAbort: &placementpb.TxnAbort{
		Owner: owner, RangeId: g.rangeID}}})
}

// deactivate asks to put the range to sleep (R10).
func (g *registration) deactivate(resolved int64) {
	g.send(&placementpb.ToSequencer{Body: &placementpb.ToSequencer_Deactivate{Deactivate: &placementpb.Deactivate{
		RangeId: g.rangeID, Term: g.term, Resolved: resolved}}})
}
