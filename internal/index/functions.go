package index

import (
	"regexp"
	"slices"
	"strings"
)

var (
	defLine   = regexp.MustCompile(`^(?:async\s+)?def\s+([^\s(\[:]+)`)
	scopeLine = regexp.MustCompile(`^(?:(?:async\s+)?def|class)\b`)
	blockLine = regexp.MustCompile(`^(?:if|elif|else|for|while|with|try|except|finally|match|case|async\s+(?:for|with))\b`)
	neverLine = regexp.MustCompile(`^(?:if|elif)\b.*\b(?:__main__|TYPE_CHECKING)\b`)
)

// functionsOf lists the functions that a Python module defines when it is
// imported, in order and each once, without those that begin with an underscore.
// It reads lines and indentation, runs nothing, and leaves
// wrong syntax to the import.
func functionsOf(source string) []string {
	var names []string
	seen := make(map[string]bool)
	type level struct {
		indent int
		scope  bool // what is below is not the module's
	}
	var levels []level
	scan := lineScanner{rest: source}
	for scan.next() {
		for len(levels) > 0 && levels[len(levels)-1].indent >= scan.indent {
			levels = levels[:len(levels)-1]
		}
		text := scan.text
		inside := slices.ContainsFunc(levels, func(l level) bool { return l.scope })
		if found := defLine.FindStringSubmatch(text); found != nil && !inside {
			if name := found[1]; !strings.HasPrefix(name, "_") && !seen[name] {
				seen[name] = true
				names = append(names, name)
			}
		}
		switch {
		case scopeLine.MatchString(text), neverLine.MatchString(text):
			levels = append(levels, level{scan.indent, true})
		case blockLine.MatchString(text):
			levels = append(levels, level{scan.indent, false})
		}
		if len(names) > maxTools {
			break
		}
	}
	return names
}

// lineScanner cuts Python into logical lines.
type lineScanner struct {
	rest   string
	indent int
	text   string // the beginning of the line, without its indentation
}

// keptLine is how much of a logical line is looked at.
const keptLine = 256

// next moves to the next logical line that is not empty.
func (s *lineScanner) next() bool {
	for s.rest != "" {
		s.line()
		if s.text != "" {
			return true
		}
	}
	return false
}

// line reads one logical line: across brackets, long texts and backslashes.
func (s *lineScanner) line() {
	i := 0
	s.indent, s.text = 0, ""
	for i < len(s.rest) {
		switch s.rest[i] {
		case ' ':
			s.indent++
		case '\t':
			s.indent = (s.indent/8 + 1) * 8
		case '\f':
			s.indent = 0
		default:
			goto text
		}
		i++
	}
text:
	depth := 0
	begin := i
	end := -1
	for i < len(s.rest) {
		switch c := s.rest[i]; {
		case c == '\n' && depth == 0:
			s.keep(begin, end, i)
			s.rest = s.rest[i+1:]
			return
		case c == '#':
			if end < 0 && depth == 0 {
				end = i
			}
			if n := strings.IndexByte(s.rest[i:], '\n'); n >= 0 {
				i += n
			} else {
				i = len(s.rest)
			}
			continue
		case c == '\\' && i+1 < len(s.rest):
			i++
		case c == '(' || c == '[' || c == '{':
			depth++
		case (c == ')' || c == ']' || c == '}') && depth > 0:
			depth--
		case c == '"' || c == '\'':
			i = endOfText(s.rest, i)
			continue
		}
		i++
	}
	s.keep(begin, end, len(s.rest))
	s.rest = ""
}

func (s *lineScanner) keep(begin, comment, end int) {
	if comment >= 0 {
		end = comment
	}
	s.text = strings.TrimSpace(s.rest[begin:min(end, begin+keptLine)])
}

// endOfText returns where a text that begins at i has ended: a long one at its
// three quotes, a short one at its quote or at the end of its line.
func endOfText(source string, i int) int {
	quote := source[i]
	if long := strings.Repeat(string(quote), 3); strings.HasPrefix(source[i:], long) {
		for j := i + 3; j < len(source); j++ {
			if source[j] == '\\' {
				j++
			} else if strings.HasPrefix(source[j:], long) {
				return j + 3
			}
		}
		return len(source)
	}
	for j := i + 1; j < len(source); j++ {
		switch source[j] {
		case '\\':
			j++
		case quote:
			return j + 1
		case '\n':
			return j
		}
	}
	return len(source)
}
