package search

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// wordMax is the longest word, in bytes, that is kept whole.
const wordMax = 64

// words calls yield with the stems of a text in order, until it returns false. Words in
// camelCase count whole and in parts. Scripts without spaces count by pairs of characters.
func words(text string, yield func(stem string) bool) {
	if !isASCII(text) {
		text = norm.NFKD.String(strings.ToValidUTF8(text, " ")) // é is e and a mark, which is dropped
	}
	for len(text) > 0 {
		start := strings.IndexFunc(text, inWord)
		if start < 0 {
			return
		}
		text = text[start:]
		end := strings.IndexFunc(text, func(r rune) bool { return !inWord(r) && !unicode.Is(unicode.Mn, r) })
		if end < 0 {
			end = len(text)
		}
		if !word(text[:end], yield) {
			return
		}
		text = text[end:]
	}
}

func inWord(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }

func isASCII(text string) bool {
	for i := range len(text) {
		if text[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// word yields the stems of one run of letters and digits.
func word(run string, yield func(string) bool) bool {
	var parts []string
	var whole, part strings.Builder
	runes := []rune(run)
	if unicode.In(runes[0], unicode.Han, unicode.Hiragana, unicode.Katakana) {
		for i := range max(len(runes)-1, 1) {
			if !yield(string(runes[i:min(i+2, len(runes))])) {
				return false
			}
		}
		return true
	}
	for i, r := range runes {
		upper := unicode.IsUpper(r)
		if upper && i > 0 && (!unicode.IsUpper(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1])) && part.Len() > 0 {
			parts = append(parts, part.String())
			part.Reset()
		}
		if unicode.Is(unicode.Mn, r) {
			continue
		}
		part.WriteRune(unicode.ToLower(r))
		whole.WriteRune(unicode.ToLower(r))
	}
	if len(parts) > 0 {
		for _, p := range append(parts, part.String()) {
			if len(p) > 1 && !yield(stem(cut(p))) {
				return false
			}
		}
	}
	return yield(stem(cut(whole.String())))
}

func cut(w string) string {
	if len(w) > wordMax {
		w = strings.ToValidUTF8(w[:wordMax], "")
	}
	return w
}

// endings are cut off a word, the first that fits, if enough of it is left. The stems of all forms
// of a word must be equal, and need not be words.
var endings = []struct {
	ending, instead string
	left            int
}{
	{"ations", "", 4}, {"ation", "", 4}, {"ating", "", 4}, {"ated", "", 4}, {"ates", "", 4}, {"ate", "", 4},
	{"tions", "t", 3}, {"tion", "t", 3}, {"sions", "s", 4}, {"sion", "s", 4},
	{"ments", "", 4}, {"ment", "", 4}, {"ings", "", 3}, {"ing", "", 3}, {"sses", "ss", 2}, {"ies", "y", 2}, {"ied", "y", 2}, {"xes", "x", 2},
	{"ches", "ch", 2}, {"shes", "sh", 2}, {"ed", "", 3}, {"ers", "er", 3}, {"es", "", 3}, {"ss", "ss", 1}, {"us", "us", 1}, {"is", "is", 1}, {"s", "", 2}, {"ly", "", 4}, {"e", "", 3},
}

// stem returns the common part of the forms of an English word.
func stem(w string) string {
	if !isASCII(w) {
		return w
	}
	for _, e := range endings {
		if head, ok := strings.CutSuffix(w, e.ending); ok && len(head) >= e.left && (e.ending == "s" || strings.ContainsAny(head+e.instead, "aeiouy")) {
			w = head + e.instead
			break
		}
	}
	if n := len(w); n > 3 && w[n-1] == w[n-2] && !strings.ContainsRune("aeiouls0123456789", rune(w[n-1])) { // running, planned
		w = w[:n-1]
	}
	if n := len(w); n > 3 && w[n-1] == 'e' {
		w = w[:n-1]
	}
	return w
}

func set(text string) map[string]bool {
	all := make(map[string]bool)
	for w := range strings.FieldsSeq(text) {
		all[stem(w)] = true
	}
	return all
}

// idle are words that questions have, and that say nothing of a tool.
var idle = set(`a an the this that these those it its i me my mine we us our you your he she they them their
	is are was were be been am do does did can could will would should shall may might must have has had
	of in on at by for from to with into onto as and or but if then than so not no
	what which who whom whose how why there here
	please want need needs like would help let tool tools use using used`)
