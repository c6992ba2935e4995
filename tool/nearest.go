package tool

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// maxNearest bounds the work of comparing one pair of names.
const maxNearest = 200

// Nearest returns up to n of the names in among that may have been meant by name,
// the likeliest first; equally likely ones in their own order. Case and the
// separators . - _ / do not count. A name whose last part is right (the
// function of a tool id) is near however long the rest is.
func Nearest(name string, among []string, n int) []string {
	if n <= 0 || name == "" || len(name) > maxNearest {
		return nil
	}
	type scored struct {
		name  string
		score int
	}
	wanted := fold(name)
	last := lastPart(wanted)
	limit := max(1, min(4, utf8.RuneCountInString(wanted)/3))
	var near []scored
	for _, candidate := range among {
		if candidate == "" || len(candidate) > maxNearest {
			continue
		}
		have := fold(candidate)
		score := distance(wanted, have, limit)
		if score > limit {
			switch {
			case len(last) >= 3 && lastPart(have) == last:
				score = limit + 1
			case len(last) >= 3 && distance(last, lastPart(have), max(1, len(last)/4)) <= max(1, len(last)/4):
				score = limit + 2
			case len(wanted) >= 3 && strings.Contains(have, wanted):
				score = limit + 3
			default:
				continue
			}
		}
		near = append(near, scored{candidate, score})
	}
	slices.SortStableFunc(near, func(a, b scored) int { return a.score - b.score })
	var names []string
	for _, s := range near[:min(n, len(near))] {
		names = append(names, s.name)
	}
	return names
}

var toDots = strings.NewReplacer("-", ".", "_", ".", "/", ".")

func fold(name string) string { return toDots.Replace(strings.ToLower(name)) }

func lastPart(name string) string { return name[strings.LastIndexByte(name, '.')+1:] }

// distance counts the insertions, deletions, replacements and swaps of
// neighbours that turn a into b. Of more than limit it returns limit+1, and stops there.
func distance(a, b string, limit int) int {
	x, y := []rune(a), []rune(b)
	far := limit + 1
	if len(x)-len(y) > limit || len(y)-len(x) > limit {
		return limit + 1
	}
	best, bestBefore := 0, 0 // the least cost in prev, and in before
	before, prev, row := make([]int, len(y)+1), make([]int, len(y)+1), make([]int, len(y)+1)
	for j := range prev {
		prev[j] = min(j, far)
	}
	for i := 1; i <= len(x); i++ {
		// Cells further from the diagonal than limit cost more than that.
		from, to := max(1, i-limit), min(len(y), i+limit)
		row[from-1] = min(i, far)
		if to < len(y) {
			row[to+1] = far
		}
		for j := from; j <= to; j++ {
			cost := 1
			if x[i-1] == y[j-1] {
				cost = 0
			}
			row[j] = min(prev[j]+1, row[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && x[i-1] == y[j-2] && x[i-2] == y[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, prev, row = prev, row, before
		if best, bestBefore = slices.Min(prev[from-1:to+1]), best; best > limit && bestBefore > limit {
			return limit + 1 // a later row comes of these two
		}
	}
	return min(prev[len(y)], limit+1)
}
