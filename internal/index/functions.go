package index

import (
	"regexp"
	"slices"
	"strings"
)

var (
	// Texts, long ones first; comments; and line breaks that end no line.
	noCode = regexp.MustCompile(`(?s)"""(?:\\.|[^\\])*?(?:"""|$)|'''(?:\\.|[^\\])*?(?:'''|$)|` +
		`"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?|#[^\n]*|\\\n`)
	defLine   = regexp.MustCompile(`^(?:async\s+)?def\s+([^\s(\[:]+)`)
	scopeLine = regexp.MustCompile(`^(?:(?:async\s+)?def|class)\b|^(?:if|elif)\b.*\b(?:__name__|TYPE_CHECKING)\b`)
	blockLine = regexp.MustCompile(`^(?:if|elif|else|for|while|with|try|except|finally|match|case|async\s+(?:for|with))\b`)
)

// functionsOf lists the functions that a Python module defines when it is
// imported, in order and each once, without those that begin with an underscore.
// It reads lines and indentation, runs nothing, and leaves
// wrong syntax to the import.
func functionsOf(source string) []string {
	source = noCode.ReplaceAllString(source, " ")
	depth := 0
	source = strings.Map(func(c rune) rune {
		switch {
		case strings.ContainsRune("([{", c):
			depth++
		case strings.ContainsRune(")]}", c):
			depth = max(depth-1, 0)
		case c == '\n' && depth > 0:
			return ' '
		}
		return c
	}, source)
	type level struct {
		indent int
		scope  bool // names below are not the module's
	}
	var names []string
	seen := map[string]bool{}
	var levels []level
	for line := range strings.SplitSeq(source, "\n") {
		text := strings.TrimLeft(line, " \t\f")
		if strings.TrimSpace(text) == "" {
			continue
		}
		indent := len(line) - len(text)
		for len(levels) > 0 && levels[len(levels)-1].indent >= indent {
			levels = levels[:len(levels)-1]
		}
		inside := slices.ContainsFunc(levels, func(l level) bool { return l.scope })
		if found := defLine.FindStringSubmatch(text); found != nil && !inside {
			if name := found[1]; !strings.HasPrefix(name, "_") && !seen[name] {
				seen[name] = true
				names = append(names, name)
			}
		}
		if scope := scopeLine.MatchString(text); scope || blockLine.MatchString(text) {
			levels = append(levels, level{indent, scope})
		}
		if len(names) > maxTools {
			break
		}
	}
	return names
}
