package sequencer

import (
	"cmp"
	"slices"

	"github.com/hawser-kv/hawser/proto/placementpb"
)

// sessions are the nodes that spoke in this term and their sessions.
//
// The session of a node only grows. Of one that is over nothing is judged: no
// message, and no owner of latches that began in it can be committed. So an
// aborted owner is remembered only as long as its session may still commit.
type sessions struct {
	nodes map[uint64]*node
	order []*node // by id
	// newest is the node that spoke last.
	newest     *node
	maxAborted int
}

// node is a node with a session in this term; before its first, with session 0.
type node struct {
	id      uint64
	session uint64
	// ended: the session is over, by S's word.
	ended bool
	// began: the first cut of the session is out.
	began bool
	// cut is the number of the newest change that its newest cut had.
	cut uint64
	// aborted owners of the session, and of later ones.
	aborted map[ownerID]struct{}
}

// ownerID is a placementpb.TxnID as a map key.
type ownerID struct {
	node, session, number uint64
}

func owner(id *placementpb.TxnID) ownerID {
	return ownerID{id.GetNodeId(), id.GetSession(), id.GetNumber()}
}

func newSessions(maxAborted int) sessions {
	return sessions{nodes: map[uint64]*node{}, maxAborted: maxAborted}
}

// in says whether the node's session is this one and not over.
func (n *node) in(session uint64) bool { return n.session == session && !n.ended }

// past says whether nothing of the session can be judged any more.
func (n *node) past(session uint64) bool {
	return session < n.session || session == n.session && n.ended
}

// forgetPast drops the aborted owners of sessions that are over: their commits
// would not be judged.
func (n *node) forgetPast() {
	// In any order: each is judged by itself.
	for o := range n.aborted {
		if n.past(o.session) {
			delete(n.aborted, o)
		}
	}
}

// get returns the node, nil if it is not known.
func (t *sessions) get(id uint64) *node { return t.nodes[id] }

// speaker is get for the node of a message: mostly the one that spoke last.
func (t *sessions) speaker(id uint64) *node {
	if t.newest != nil && t.newest.id == id {
		return t.newest
	}
	n := t.nodes[id]
	if n != nil {
		t.newest = n
	}
	return n
}

// know returns the node, known without a session if it was not known.
func (t *sessions) know(id uint64) *node {
	n := t.nodes[id]
	if n == nil {
		n = &node{id: id, aborted: map[ownerID]struct{}{}}
		t.nodes[id] = n
		i, _ := slices.BinarySearchFunc(t.order, id, func(o *node, id uint64) int { return cmp.Compare(o.id, id) })
		t.order = slices.Insert(t.order, i, n)
	}
	return n
}

// begin begins a session of the node, unless it is not newer (R6). It has no
// cut yet.
func (t *sessions) begin(id, session uint64) (n *node, newer bool) {
	n = t.know(id)
	if session <= n.session {
		return n, false
	}
	n.session, n.ended, n.began, n.cut = session, false, false, 0
	n.forgetPast()
	return n, true
}

// end ends the session, and all of the node before it.
func (t *sessions) end(n *node, session uint64) {
	n.session, n.ended, n.began = session, true, false
	n.forgetPast()
}

// forbid remembers an aborted owner as long as its session can still commit. It
// returns a node if that has too many: the owner's session must be ended
// instead, which forbids all its owners.
func (t *sessions) forbid(id ownerID) (full *node) {
	if id.node == 0 {
		return nil
	}
	// The node may have no session in this term yet.
	n := t.know(id.node)
	if n.past(id.session) {
		return nil
	}
	if len(n.aborted) >= t.maxAborted {
		return n
	}
	n.aborted[id] = struct{}{}
	return nil
}

// lagging says whether a node's newest cut is older than the change.
func (t *sessions) lagging(change uint64) bool {
	return slices.ContainsFunc(t.order, func(n *node) bool { return n.began && n.cut < change })
}
