package search

import (
	_ "embed" // the words of a file
	"strings"
)

// meant is the weight of a word that a question has another word for.
const meant = 0.5

// groups are words that people and authors of tools use for the same, one group a line. A
// word may stand in several. They are of everyday use and of software in general: no name of
// a product is among them. What people write in two words is written here in one.
//
//go:embed meanings.txt
var groups string

// meanings are the other words of a word's groups.
var meanings = func() map[string][]weighted {
	all := make(map[string][]weighted)
	for line := range strings.Lines(groups) {
		group := strings.Fields(line)
		for _, one := range group {
			for _, other := range group {
				if stem(one) != stem(other) {
					all[stem(one)] = append(all[stem(one)], weighted{stem(other), meant})
				}
			}
		}
	}
	return all
}()
