// Package client is a node's end of the conversation with the sequencer S
// (revisions.md R3, R5, R6): it keeps the epoch and the session, subscribes,
// hands what S says to the ranges and to the consumer of cuts, and matches
// answers with questions. It drops what is of an older epoch or session: a node
// never turns back to an older S.
//
// It starts no goroutine and reads no clock: everything happens on the callers'
// goroutines.
package client

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/hawser-kv/hawser/proto/placementpb"
)

// Errors of calls; no answer will come for them.
var (
	// ErrSessionOver: the session with S ended after the request was sent; a
	// transaction, split or compaction may have been decided or may yet be.
	// Queries are not failed with it: they are asked again.
	ErrSessionOver = errors.New("placement client: session with the sequencer is over; the fate of the request is unknown")
	// ErrOverloaded: too many requests wait for S; this one was not sent.
	ErrOverloaded = errors.New("placement client: too many requests wait for the sequencer")
	// ErrStopped: the client was stopped. What was sent before may be decided.
	ErrStopped = errors.New("placement client: stopped")
)

// Link is the way to S. *placement.Service is one.
type Link interface {
	// Receive sends a message. It may be lost, never doubled or overtaken by a
	// later one of the same caller. It may call Client.Deliver before it
	// returns.
	Receive(m *placementpb.ToSequencer)
	// Query answers at once, or says that it cannot.
	Query(nodeID, session uint64, ranges []*placementpb.RangeEpoch, marks []int64) (revision, compacted int64, ok bool)
}

// Config says what a Client is made of; all but MaxCalls is required.
type Config struct {
	ClusterID, NodeID uint64
	// FirstSession must be above every session that this node ever used, over
	// restarts too; each client uses a few of those that follow.
	FirstSession uint64
	Link         Link
	// Range takes what S says of a range of this node: Registered, Grant,
	// Decided, Unlatch, Deactivated, Wake. Epoch and session are in m.
	Range func(rangeID uint64, m *placementpb.FromSequencer)
	// NewSession says that a session has begun: leaders of ranges register
	// (R3). The session's first cut was given to Cut before.
	NewSession func(epoch, session uint64)
	// Cut takes the cuts of the session, in order; First begins a new one.
	Cut func(c *placementpb.Cut)
	// MaxCalls bounds the requests that wait for S. Default 100,000.
	MaxCalls int
}

// Validate names all problems of the configuration.
func (c *Config) Validate() error {
	var errs []error
	missing := func(name string, is bool) {
		if is {
			errs = append(errs, fmt.Errorf("placement client: %s is missing", name))
		}
	}
	missing("ClusterID", c.ClusterID == 0)
	missing("NodeID", c.NodeID == 0)
	missing("FirstSession", c.FirstSession == 0)
	missing("Link", c.Link == nil)
	missing("Range", c.Range == nil)
	missing("NewSession", c.NewSession == nil)
	missing("Cut", c.Cut == nil)
	return errors.Join(errs...)
}

// Client is a node's end. Its methods are safe for concurrent use, except that
// Deliver is called by one goroutine at a time. Callbacks run without its lock,
// on the goroutine that made the call or that delivers the answer, exactly
// once; they may call the client and must not block.
type Client struct {
	cfg Config

	mu struct {
		sync.Mutex
		// epoch is the highest e seen.
		epoch   uint64
		session uint64
		// established: the first cut of the session is here.
		established bool
		stopped     bool
		lastID      uint64
		lastOwner   uint64
		// calls that wait: by number, in the order made.
		calls map[uint64]*call
		// txns finds the call of a transaction by its owner's number.
		txns map[owner]uint64
	}
}

type owner struct{ session, number uint64 }

// call is one request that waits for its answer.
type call struct {
	id uint64
	// message to send; its session is filled in at each sending.
	message func() *placementpb.ToSequencer
	// sent in the current session.
	sent bool
	// again: may be sent once more in the next session.
	again bool
	// done gets the answer, or an error.
	done func(*placementpb.FromSequencer, error)
}

// New returns a client that has not subscribed. Call Start when the link can
// deliver.
func New(cfg Config) (*Client, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.MaxCalls = cmp.Or(cfg.MaxCalls, 100_000)
	c := &Client{cfg: cfg}
	c.mu.session = cfg.FirstSession - 1
	c.mu.calls = map[uint64]*call{}
	c.mu.txns = map[owner]uint64{}
	return c, nil
}

// Start subscribes. It is also what to call when the link was broken: it begins
// a new session.
func (c *Client) Start() {
	c.mu.Lock()
	c.unlockAndSubscribe()
}

// Stop fails all calls, now and later.
func (c *Client) Stop() {
	c.mu.Lock()
	c.mu.stopped, c.mu.established = true, false
	failed := c.takeCallsLocked(func(*call) bool { return true })
	c.mu.Unlock()
	for _, k := range failed {
		k.done(nil, ErrStopped)
	}
}

// Session returns the epoch and session, ok while they are established.
func (c *Client) Session() (epoch, session uint64, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.epoch, c.mu.session, c.mu.established
}

// Send sends a message of a range's leader: Register, GrantRequest, TxnAbort,
// Report, Deactivate. A session in it is kept, so that what was meant for an
// older one is not taken for the current; 0 means the current. Without a
// session the message is dropped: leaders register when the next begins.
func (c *Client) Send(m *placementpb.ToSequencer) {
	c.mu.Lock()
	m.ClusterId, m.NodeId = c.cfg.ClusterID, c.cfg.NodeID
	if m.Session == 0 {
		m.Session = c.mu.session
	}
	ok := c.mu.established && m.Session == c.mu.session
	c.mu.Unlock()
	if ok {
		c.cfg.Link.Receive(m)
	}
}

// answer is a QueryAnswer with room for the marks of few ranges.
type answer struct {
	placementpb.QueryAnswer
	few [4]int64
}

// Query asks for R and the m of the ranges (R5). It is asked again when the
// session changes before the answer.
func (c *Client) Query(ranges []*placementpb.RangeEpoch, done func(*placementpb.QueryAnswer, error)) {
	c.mu.Lock()
	established, session := c.mu.established, c.mu.session
	c.mu.Unlock()
	if established {
		a := &answer{}
		a.Marks = a.few[:]
		if len(ranges) > len(a.few) {
			a.Marks = make([]int64, len(ranges))
		}
		a.Marks = a.Marks[:len(ranges)]
		var ok bool
		if a.Revision, a.Compacted, ok = c.cfg.Link.Query(c.cfg.NodeID, session, ranges, a.Marks); ok {
			done(&a.QueryAnswer, nil)
			return
		}
	}
	c.call(true, func(id uint64) *placementpb.ToSequencer {
		return &placementpb.ToSequencer{Body: &placementpb.ToSequencer_Query{
			Query: &placementpb.Query{Id: id, Ranges: ranges}}}
	}, func(m *placementpb.FromSequencer, err error) { done(m.GetQuery(), err) })
}

// NewOwner returns an owner of latches that was never used, of the current
// session (R7).
func (c *Client) NewOwner() *placementpb.TxnID {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.lastOwner++
	return &placementpb.TxnID{NodeId: c.cfg.NodeID, Session: c.mu.session, Number: c.mu.lastOwner}
}

// Commit asks S to decide a transaction (R7). Its owner is from NewOwner and is
// committed once. An owner of an older session is refused, which releases its
// latches.
func (c *Client) Commit(txn *placementpb.TxnCommit, done func(*placementpb.TxnResult, error)) {
	c.call(false, func(uint64) *placementpb.ToSequencer {
		return &placementpb.ToSequencer{Body: &placementpb.ToSequencer_TxnCommit{TxnCommit: txn}}
	}, func(m *placementpb.FromSequencer, err error) { done(m.GetTxn(), err) })
}

// Abort asks S never to commit the owner.
func (c *Client) Abort(owner *placementpb.TxnID) {
	c.Send(&placementpb.ToSequencer{Body: &placementpb.ToSequencer_TxnAbort{
		TxnAbort: &placementpb.TxnAbort{Owner: owner}}})
}

// Split asks S to split the range that holds the key at the key (R11).
func (c *Client) Split(key []byte, done func(*placementpb.SplitResult, error)) {
	c.call(false, func(id uint64) *placementpb.ToSequencer {
		return &placementpb.ToSequencer{Body: &placementpb.ToSequencer_Split{
			Split: &placementpb.SplitRequest{Id: id, Key: key}}}
	}, func(m *placementpb.FromSequencer, err error) { done(m.GetSplit(), err) })
}

// Compact asks S to raise the compacted revision (R9, etcd/C1).
func (c *Client) Compact(rev int64, done func(*placementpb.CompactResult, error)) {
	c.call(false, func(id uint64) *placementpb.ToSequencer {
		return &placementpb.ToSequencer{Body: &placementpb.ToSequencer_Compact{
			Compact: &placementpb.CompactRequest{Id: id, Revision: rev}}}
	}, func(m *placementpb.FromSequencer, err error) { done(m.GetCompact(), err) })
}

// call makes a request: now, or when a session is established.
func (c *Client) call(again bool, body func(id uint64) *placementpb.ToSequencer, done func(*placementpb.FromSequencer, error)) {
	c.mu.Lock()
	if c.mu.stopped || len(c.mu.calls) >= c.cfg.MaxCalls {
		err := ErrOverloaded
		if c.mu.stopped {
			err = ErrStopped
		}
		c.mu.Unlock()
		done(nil, err)
		return
	}
	c.mu.lastID++
	id := c.mu.lastID
	k := &call{id: id, again: again, done: done, message: func() *placementpb.ToSequencer { return body(id) }}
	c.mu.calls[id] = k
	if txn := k.message().GetTxnCommit(); txn != nil {
		c.mu.txns[owner{txn.Owner.GetSession(), txn.Owner.GetNumber()}] = id
	}
	if !c.mu.established {
		c.mu.Unlock()
		return
	}
	m := c.sendLocked(k)
	c.mu.Unlock()
	c.cfg.Link.Receive(m)
}

// sendLocked marks the call sent and returns what to send.
func (c *Client) sendLocked(k *call) *placementpb.ToSequencer {
	k.sent = true
	m := k.message()
	m.ClusterId, m.NodeId, m.Session = c.cfg.ClusterID, c.cfg.NodeID, c.mu.session
	return m
}

// unlockAndSubscribe begins a new session: what was asked in the old one gets
// no answer any more.
func (c *Client) unlockAndSubscribe() {
	if c.mu.stopped {
		c.mu.Unlock()
		return
	}
	c.mu.session++
	c.mu.established = false
	failed := c.takeCallsLocked(func(k *call) bool { return k.sent && !k.again })
	for _, k := range c.mu.calls {
		k.sent = false
	}
	m := &placementpb.ToSequencer{
		ClusterId: c.cfg.ClusterID, NodeId: c.cfg.NodeID, Session: c.mu.session,
		Body: &placementpb.ToSequencer_Subscribe{Subscribe: &placementpb.Subscribe{}},
	}
	c.mu.Unlock()
	c.cfg.Link.Receive(m)
	for _, k := range failed {
		k.done(nil, ErrSessionOver)
	}
}

// takeCallsLocked removes the calls that match, in the order made.
func (c *Client) takeCallsLocked(match func(*call) bool) []*call {
	var taken []*call
	for id, k := range c.mu.calls {
		if match(k) {
			taken = append(taken, k)
			delete(c.mu.calls, id)
		}
	}
	for o, id := range c.mu.txns {
		if c.mu.calls[id] == nil {
			delete(c.mu.txns, o)
		}
	}
	slices.SortFunc(taken, func(a, b *call) int { return cmp.Compare(a.id, b.id) })
	return taken
}

// Deliver takes a message of S. Called in the order in which S sent them.
func (c *Client) Deliver(m *placementpb.FromSequencer) {
	if m.ClusterId != c.cfg.ClusterID {
		return
	}
	c.mu.Lock()
	if c.mu.stopped || m.Epoch < c.mu.epoch {
		c.mu.Unlock()
		return
	}
	newer := m.Epoch > c.mu.epoch
	c.mu.epoch = m.Epoch
	current := m.Session == c.mu.session
	cut := m.GetCut()
	switch {
	case cut.GetFirst() && current:
		c.mu.established = true
		c.unlockAndEstablish(m.Epoch, m.Session, cut)
		return
	case newer, m.Body == nil && (current || !c.mu.established):
		// Another S, or this one does not know the session.
		c.unlockAndSubscribe()
		return
	case !current || !c.mu.established:
		c.mu.Unlock()
		return
	}
	var id uint64
	switch b := m.Body.(type) {
	case *placementpb.FromSequencer_Query:
		id = b.Query.Id
	case *placementpb.FromSequencer_Split:
		id = b.Split.Id
	case *placementpb.FromSequencer_Compact:
		id = b.Compact.Id
	case *placementpb.FromSequencer_Txn:
		o := owner{b.Txn.Owner.GetSession(), b.Txn.Owner.GetNumber()}
		id = c.mu.txns[o]
		delete(c.mu.txns, o)
	}
	k := c.mu.calls[id]
	delete(c.mu.calls, id)
	c.mu.Unlock()

	switch b := m.Body.(type) {
	case *placementpb.FromSequencer_Cut:
		c.cfg.Cut(b.Cut)
	case *placementpb.FromSequencer_Registered:
		c.cfg.Range(b.Registered.RangeId, m)
	case *placementpb.FromSequencer_Grant:
		c.cfg.Range(b.Grant.RangeId, m)
	case *placementpb.FromSequencer_Decided:
		c.cfg.Range(b.Decided.RangeId, m)
	case *placementpb.FromSequencer_Unlatch:
		c.cfg.Range(b.Unlatch.RangeId, m)
	case *placementpb.FromSequencer_Deactivated:
		c.cfg.Range(b.Deactivated.RangeId, m)
	case *placementpb.FromSequencer_Wake:
		c.cfg.Range(b.Wake.RangeId, m)
	default:
		if k != nil {
			k.done(m, nil)
		}
	}
}

// unlockAndEstablish begins the session: the directory first, then the leaders,
// then what waited.
func (c *Client) unlockAndEstablish(epoch, session uint64, first *placementpb.Cut) {
	c.mu.Unlock()
	c.cfg.Cut(first)
	c.cfg.NewSession(epoch, session)

	c.mu.Lock()
	if !c.mu.established || c.mu.session != session {
		c.mu.Unlock()
		return
	}
	var waiting []*call
	for _, k := range c.mu.calls {
		if !k.sent {
			waiting = append(waiting, k)
		}
	}
	slices.SortFunc(waiting, func(a, b *call) int { return cmp.Compare(a.id, b.id) })
	messages := make([]*placementpb.ToSequencer, len(waiting))
	for i, k := range waiting {
		messages[i] = c.sendLocked(k)
	}
	c.mu.Unlock()
	for _, m := range messages {
		c.cfg.Link.Receive(m)
	}
}
