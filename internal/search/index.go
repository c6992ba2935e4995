package search

import (
	"cmp"
	"container/heap"
	"iter"
	"math"
	"strings"
)

// Document is the indexed text of a tool.
type Document struct {
	// ID is the full id. The part behind its first dot counts most.
	ID          string
	Description string
	Parameters  []Parameter
}

// Parameter is one parameter of a tool.
type Parameter struct{ Name, Description string }

const (
	// textMax is how many bytes of a text are read, and termsMax how many different words a
	// document is found by: the first ones.
	textMax  = 4 << 10
	termsMax = 256
	// QueryMax is how many bytes a question may have, and queryTerms how many of its words count.
	QueryMax   = 4 << 10
	queryTerms = 32
)

// The weights of a word by its place, and how soon more of the same word counts less.
const (
	weightName        = 3.0
	weightIndex       = 1.5
	weightLead        = 1.6 // the description's first sentence
	weightDescription = 0.6
	weightParameter   = 0.6
	weightNote        = 0.25 // a parameter's description
	saturation        = 2.0
	repeats           = 3    // how often a word of one text counts
	usualLength       = 45.0 // words of a description
	lengthMatters     = 0.5
)

// posting says how much a word is worth in a document.
type posting struct {
	doc   int32
	worth float32
}

// Index finds documents by words. Methods that change it must not run with any other.
type Index struct {
	postings map[string][]posting
	has      map[string]bool
	keys     []string // by number
}

// NewIndex returns an index without documents.
func NewIndex() *Index {
	return &Index{postings: make(map[string][]posting), has: make(map[string]bool)}
}

// Len is how many documents the index has.
func (x *Index) Len() int { return len(x.keys) }

// Has reports whether the index has a document of a key.
func (x *Index) Has(key string) bool { return x.has[key] }

// Put adds a document under a key that the index does not have.
func (x *Index) Put(key string, d Document) {
	number := int32(len(x.keys)) //nolint:gosec // there are not so many tools
	x.keys, x.has[key] = append(x.keys, key), true
	for term, worth := range d.terms() {
		x.postings[term] = append(x.postings[term], posting{number, float32(worth / (worth + saturation))})
	}
}

// Remove drops the documents of which gone says so.
func (x *Index) Remove(gone func(key string) bool) {
	const none = -1
	numbers, kept := make([]int32, len(x.keys)), x.keys[:0] // the new numbers
	for i, key := range x.keys {
		if numbers[i] = int32(len(kept)); gone(key) { //nolint:gosec // as above
			numbers[i] = none
			delete(x.has, key)
			continue
		}
		kept = append(kept, key)
	}
	if len(kept) == len(x.keys) {
		return
	}
	x.keys = kept
	for term, all := range x.postings {
		kept := all[:0]
		for _, p := range all {
			if p.doc = numbers[p.doc]; p.doc != none {
				kept = append(kept, p)
			}
		}
		if x.postings[term] = kept; len(kept) == 0 {
			delete(x.postings, term)
		}
	}
}

// terms are the words of a document with their weights.
func (d Document) terms() map[string]float64 {
	all := make(map[string]float64)
	add := func(text string, weight float64) {
		times := make(map[string]int)
		words(text[:min(len(text), textMax)], func(stem string) bool {
			if _, ok := all[stem]; (ok || len(all) < termsMax) && !idle[stem] && times[stem] < repeats {
				all[stem] += weight
				times[stem]++
			}
			return true
		})
	}
	index, name, ok := strings.Cut(d.ID, ".")
	if !ok {
		index, name = "", d.ID
	}
	add(name, weightName)
	add(index, weightIndex)
	text := d.Description[:min(len(d.Description), textMax)]
	length := 0.0
	words(text, func(string) bool { length++; return true })
	norm := max(1-lengthMatters+lengthMatters*length/usualLength, 0.5)
	lead, rest := text, ""
	if end := strings.IndexAny(text, ".\n"); end > 0 {
		lead, rest = text[:end], text[end:]
	}
	add(lead, weightLead/norm)
	add(rest, weightDescription/norm)
	for _, p := range d.Parameters {
		add(p.Name, weightParameter)
		add(p.Description, weightNote)
	}
	return all
}

// Query is a question's words.
type Query struct {
	terms [][]weighted // of each word: itself, and its synonyms
}

type weighted struct {
	stem   string
	weight float64
}

// Parse reads a question. Without a word that says something, all its words count.
func Parse(question string) Query {
	var all, telling []string
	words(question[:min(len(question), QueryMax)], func(stem string) bool {
		all = append(all, stem)
		if !idle[stem] {
			telling = append(telling, stem)
		}
		return len(telling) < queryTerms
	})
	if len(telling) == 0 {
		telling = all[:min(len(all), queryTerms)]
	}
	var q Query
	seen := make(map[string]bool)
	for i, stem := range telling {
		if i+1 < len(telling) { // "time zone" is "timezone"
			joined := stem + telling[i+1]
			q.add(seen, append([]weighted{{joined, 1}}, meanings[joined]...)...)
		}
		q.add(seen, append([]weighted{{stem, 1}}, meanings[stem]...)...)
	}
	return q
}

func (q *Query) add(seen map[string]bool, means ...weighted) {
	if !seen[means[0].stem] {
		seen[means[0].stem] = true
		q.terms = append(q.terms, means)
	}
}

// hit is one document with its score.
type hit struct {
	key   string
	score float64
}

// hits is a heap, the best on top.
type hits []hit

func (h hits) Len() int      { return len(h) }
func (h hits) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h hits) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(h[j].score, h[i].score), cmp.Compare(h[i].key, h[j].key)) < 0
}
func (h *hits) Push(any) {}
func (h *hits) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

// Rank returns the keys of the documents that have words of a question, the best first, and
// their scores. Documents with the same score come in the order of their keys. Words count
// by how rare they are in all the indexes together.
func Rank(q Query, indexes ...*Index) iter.Seq2[string, float64] {
	return func(yield func(string, float64) bool) {
		var found hits
		total := 0
		for _, x := range indexes {
			total += x.Len()
		}
		for _, x := range indexes {
			scores, best := make([]float64, len(x.keys)), make([]float64, len(x.keys))
			for _, means := range q.terms {
				for _, m := range means {
					df := 0
					for _, one := range indexes {
						df += len(one.postings[m.stem])
					}
					rare := m.weight * math.Log(1+(float64(total-df)+0.5)/(float64(df)+0.5))
					for _, p := range x.postings[m.stem] {
						best[p.doc] = max(best[p.doc], rare*float64(p.worth))
					}
				}
				for doc, worth := range best {
					scores[doc] += worth
				}
				clear(best)
			}
			for doc, score := range scores {
				if score > 0 {
					found = append(found, hit{x.keys[doc], score})
				}
			}
		}
		heap.Init(&found)
		for found.Len() > 0 {
			if one := heap.Pop(&found).(hit); !yield(one.key, one.score) { //nolint:forcetypeassert // hits has these alone
				return
			}
		}
	}
}
