package subjects

import (
	"fmt"
	"strings"
)

// Globs are patterns of tool ids. None of them means every tool.
type Globs []string

// globsMax is how many bytes globs may have together.
const globsMax = 4 << 10

// ParseGlobs reads patterns with commas between them. In a pattern * matches any text
// without a dot, and ** any text.
func ParseGlobs(text string) (Globs, error) {
	var all Globs
	for one := range strings.SplitSeq(text, ",") {
		if one = strings.TrimSpace(one); one != "" {
			all = append(all, one)
		}
	}
	return all, all.Check()
}

// Check refuses patterns that are too long: each tool is compared with them.
func (g Globs) Check() error {
	size := max(len(g)-1, 0)
	for _, one := range g {
		size += len(one)
	}
	if size > globsMax {
		return fmt.Errorf("%w: patterns of tools have %d bytes, and may have %d", ErrInvalid, size, globsMax)
	}
	return nil
}

// Match reports whether a tool is among those that the patterns mean.
func (g Globs) Match(id ToolID) bool {
	for _, one := range g {
		if matchGlob(one, string(id)) {
			return true
		}
	}
	return len(g) == 0
}

// Exact returns the globs that equal one pattern of subjects, and the others; the tools of those
// must be listed.
func (g Globs) Exact() (exact, others Globs) {
	for _, one := range g {
		if _, ok := globPattern(one); ok {
			exact = append(exact, one)
		} else {
			others = append(others, one)
		}
	}
	return exact, others
}

// globPattern returns the pattern of NATS that matches the subjects of the tools that a glob
// means, behind their session; false where a star matches a part of a name.
func globPattern(glob string) (pattern string, ok bool) {
	names := strings.Split(glob, ".")
	for i, name := range names {
		switch {
		case name == "*":
		case name == "**" && i == len(names)-1:
			names[i] = ">"
		case !plainToken(name):
			return "", false
		}
	}
	return strings.Join(names, "."), true
}

// matchGlob is linear in both texts for each star: patterns are strangers'.
func matchGlob(glob, text string) bool {
	reached := make([]bool, len(text)+1) // by the part of the glob that was read
	reached[0] = true
	for i := 0; i < len(glob); i++ {
		if glob[i] != '*' {
			for at := len(text); at > 0; at-- {
				reached[at] = reached[at-1] && text[at-1] == glob[i]
			}
			reached[0] = false
			continue
		}
		dots := i+1 < len(glob) && glob[i+1] == '*'
		if dots {
			i++
		}
		for at := 1; at <= len(text); at++ {
			reached[at] = reached[at] || reached[at-1] && (dots || text[at-1] != '.')
		}
	}
	return reached[len(text)]
}
