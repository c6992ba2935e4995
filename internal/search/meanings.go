package search

import (
	_ "embed" // the words of a file
	"strings"
)

// meant is the weight of a word that a question has another word for.
const meant = 0.5

// groups are synonyms that people and authors of tools use, one group a line. A word may be in
// several. They are of everyday use and of software in general, without names of products.
// Compounds that people write as two words are one here.
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
