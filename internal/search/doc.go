// Package search ranks tools by a request in a person's or a model's own words.
//
// It is BM25 over the words of a tool's id, its description and its parameters, with four
// additions: words are reduced to their stems, the fields have weights, a question's words also
// match their usual synonyms in names of tools, and a description's length is compared with a fixed
// one, so that adding a tool changes the score of no other tool by its length. An [Index] is
// changed in place. It knows no sessions: the registry keeps one index for the tools of all
// sessions and one for each session that asks, and ranks both together.
package search
