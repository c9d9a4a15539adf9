package sequencer

import (
	"fmt"
	"reflect"

	"github.com/hawser-kv/hawser/proto/placementpb"
)

// proposals are the entries that S proposed in its term and that are not
// applied yet. They are numbered from 1, go into the meta log in that order,
// each once, and are applied in that order (R0). A number that something waits
// for is called a barrier.
type proposals struct {
	epoch  uint64
	newest uint64 // number
	queue  []proposal
	unsent int // the last ones, not yet given out by send
}

// proposal is one entry and what S does when it is applied.
type proposal struct {
	command *placementpb.MetaCommand
	// ledgers it concerns.
	ledgers []*ledger
	// decided entries it makes; they get its index.
	decided []*placementpb.Decided
	// node and session that are answered, by owner or request.
	node    *node
	session uint64
	owner   *placementpb.TxnID
	request uint64
}

// propose adds an entry and returns its number.
func (q *proposals) propose(cmd *placementpb.MetaCommand, p proposal) uint64 {
	cmd.Epoch = q.epoch
	p.command = cmd
	q.newest++
	q.queue = append(q.queue, p)
	q.unsent++
	return q.newest
}

// open returns the newest entry while it is not sent and can still grow, else
// nil.
func (q *proposals) open() *proposal {
	if q.unsent == 0 {
		return nil
	}
	return &q.queue[len(q.queue)-1]
}

// send appends the entries that were not sent yet.
func (q *proposals) send(to []*placementpb.MetaCommand) []*placementpb.MetaCommand {
	for _, p := range q.queue[len(q.queue)-q.unsent:] {
		to = append(to, p.command)
	}
	q.unsent = 0
	return to
}

// applied takes the oldest entry, which is cmd, applied at the index.
func (q *proposals) applied(index uint64, cmd *placementpb.MetaCommand) proposal {
	if len(q.queue) <= q.unsent {
		panic(fmt.Sprintf("sequencer: entry %d (%T) of epoch %d was never proposed", index, cmd.Command, cmd.Epoch))
	}
	p := q.queue[0]
	q.queue[0] = proposal{}
	q.queue = q.queue[1:]
	if reflect.TypeOf(p.command.Command) != reflect.TypeOf(cmd.Command) {
		panic(fmt.Sprintf("sequencer: entry %d is %T, proposed was %T", index, cmd.Command, p.command.Command))
	}
	for _, d := range p.decided {
		d.MetaIndex = index
	}
	return p
}
