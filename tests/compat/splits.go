package compat

import "slices"

// splitPlan says before which steps which keys become boundaries of ranges.
type splitPlan struct {
	// step counts the steps made, splits included.
	step int
	// at has the keys by step.
	at map[int][][]byte
}

// planSplits draws the keys that cut the keyspace into a number of ranges: half of them before the first step, the rest in small
// groups at steps in the middle.
func (g *Generator) planSplits(steps, ranges int) splitPlan {
	candidates := slices.Clone(oddKeys)
	for n := range denseKeys {
		candidates = append(candidates, denseKey(n), denseKey(n)+"/sub", denseKey(n)+"~")
	}
	// The lowest key begins the first range already.
	candidates = slices.DeleteFunc(candidates, func(key string) bool { return key == "\x00" })
	g.rng.Shuffle(len(candidates), func(i, j int) { candidates[i], candidates[j] = candidates[j], candidates[i] })
	plan := splitPlan{at: make(map[int][][]byte)}
	for n, key := range candidates[:ranges-1] {
		step := 0
		if n >= ranges/2 {
			step = 1 + g.rng.IntN(steps)/5*5
		}
		plan.at[step] = append(plan.at[step], []byte(key))
	}
	return plan
}

func (p *splitPlan) next() (Op, bool) {
	keys := p.at[p.step]
	delete(p.at, p.step)
	if len(keys) > 0 {
		return Op{Kind: Split, Keys: keys}, true
	}
	p.step++
	return Op{}, false
}
