package watch

import "github.com/hawser-kv/hawser/mvcc/spans"

// frontierNews is what has changed in a frontier since the hub has asked last.
type frontierNews struct {
	// whole: the directory is another one; layout names all of it.
	whole bool
	// layout has the changes of the directory, in order.
	layout []layoutNews
	// moved are ranges that have another completeness, each once.
	moved []*mark
}

// layoutNews is a range that is gone, or that has come with a span.
type layoutNews struct {
	id         uint64
	gone       bool
	start, end []byte
}

func (n *frontierNews) reset() {
	n.whole, n.layout = true, nil
}

// viewNews is the same for the hub, which reads it without the frontier's lock.
type viewNews struct {
	revision int64
	whole    bool
	layout   []layoutNews
	moved    []movedRange
}

type movedRange struct {
	id       uint64
	complete int64
}

// takeNews returns what has changed since it was called last.
func (f *Frontier) takeNews() viewNews {
	f.mu.Lock()
	defer f.mu.Unlock()
	news := viewNews{revision: f.mu.revision, whole: f.mu.news.whole, layout: f.mu.news.layout}
	for _, x := range f.mu.news.moved {
		x.told = false
		if f.mu.byID[x.id] == x {
			news.moved = append(news.moved, movedRange{x.id, x.tile.Item.complete})
		}
	}
	clear(f.mu.news.moved)
	f.mu.news = frontierNews{moved: f.mu.news.moved[:0]}
	return news
}

// view is what a hub knows of its frontier: how it was before the events were taken
// out of the inbox. What the view calls complete has been in the inbox by then.
type view struct {
	revision int64
	tiles    tiling
	byID     map[uint64]*spans.Node[tile]
	// ahead are the groups that wait for a newer revision.
	ahead blockedGroups
	// version counts the changes.
	version uint64
}

func newView() view { return view{tiles: newTiling(), byID: make(map[uint64]*spans.Node[tile])} }

// complete returns the revision up to which [start, end) is complete.
func (v *view) complete(start, end []byte) int64 { return v.tiles.complete(start, end, v.revision) }

// learn takes news. It calls release for every group whose wait has an end.
func (v *view) learn(news viewNews, release func(*group)) {
	v.version++
	v.revision = news.revision
	v.ahead.release(v.revision, release)
	if news.whole {
		v.tiles.tiles.Each(func(t *tile) { t.blocked.releaseAll(release) })
		v.tiles, v.byID = newTiling(), make(map[uint64]*spans.Node[tile], len(news.layout))
	}
	for _, l := range news.layout {
		if !l.gone {
			v.byID[l.id] = v.tiles.add(l.id, l.start, l.end)
			continue
		}
		if n := v.byID[l.id]; n != nil {
			n.Item.blocked.releaseAll(release)
			v.tiles.tiles.Remove(n)
			delete(v.byID, l.id)
		}
	}
	for _, m := range news.moved {
		n := v.byID[m.id]
		v.tiles.set(n, m.complete)
		n.Item.blocked.release(m.complete, release)
	}
}
