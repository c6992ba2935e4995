package output

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// mark replaces a secret; redaction.py has the same.
const mark = "***"

// Redactor removes an index's secrets from output that bypasses the worker: of descriptors 1 and
// 2, of imports, and in errors of ended processes. A worker does the same itself, by
// [Redactor.Forms]. A nil Redactor changes nothing. Safe for concurrent use.
type Redactor struct {
	parts   []part
	longest int // bytes of the longest replaced text
	forms   *Forms
}

// part is a text to replace.
type part struct {
	text, expression string
	behind           bool // one character before it is replaced, too
}

// beside matches a character of base64 that contains a part of a secret.
const beside = "[A-Za-z0-9+/_-]?"

// pattern is the expression of parts.
func pattern(parts []part) string {
	var all, behind []string
	for _, p := range parts {
		if p.behind {
			behind = append(behind, p.expression)
		} else {
			all = append(all, p.expression)
		}
	}
	if behind != nil {
		all = append([]string{beside + "(?:" + strings.Join(behind, "|") + ")"}, all...) // Python skips these quickly
	}
	return strings.Join(all, "|")
}

// Forms are what a worker replaces.
type Forms struct {
	Pattern string   `json:"pattern"` // a regular expression, for Python too
	Texts   []string `json:"texts"`   // one of them is in each text that the pattern matches
}

// coded is the base64 of a secret at any position of a longer text: the characters that depend on
// the secret alone, and whether those before and after them contain a part of it.
type coded struct {
	core          string
	ahead, behind bool
}

// Lengths in characters.
const (
	redactPart  = 8 // minimum of a line or a part that counts as a secret itself
	redactWhole = 4 // minimum of a secret that is replaced inside of words
)

// NewRedactor makes a Redactor for the values; nil without any secret.
func NewRedactor(values []string) *Redactor {
	var texts, words []string
	var codes []coded
	for _, value := range values {
		value = strings.TrimSpace(value)
		switch size := len([]rune(value)); {
		case size < 2:
		case size < redactWhole:
			words = append(words, value)
		default:
			for _, base := range basesOf(value) {
				texts = append(texts, looksOf(base)...)
				codes = append(codes, codedOf(base)...)
			}
		}
	}
	if len(texts)+len(words) == 0 {
		return nil
	}
	longer := func(a, b string) int { return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b)) }
	slices.SortFunc(texts, longer)
	slices.SortFunc(words, longer)
	slices.SortFunc(codes, func(a, b coded) int { return longer(a.core, b.core) })
	r := &Redactor{forms: &Forms{}}
	add := func(text, before, after string, behind bool) {
		valid := strings.ToValidUTF8(text, "\uFFFD")
		quoted := strings.ReplaceAll(regexp.QuoteMeta(valid), "\uFFFD", "\uFFFD+") // one for each bad byte of a raw text
		r.parts = append(r.parts, part{valid, before + quoted + after, behind})
		r.forms.Texts = append(r.forms.Texts, valid)
		r.longest = max(r.longest, len(text)+2, len(valid)+2)
	}
	when := func(yes bool, expression string) string {
		if yes {
			return expression
		}
		return ""
	}
	for _, code := range slices.Compact(codes) {
		add(code.core, "", when(code.behind, beside), code.ahead)
	}
	for _, text := range slices.Compact(texts) {
		add(text, "", "", false)
	}
	for _, text := range slices.Compact(words) {
		inWord := func(c byte) bool {
			return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		}
		add(text, when(inWord(text[0]), `\b`), when(inWord(text[len(text)-1]), `\b`), false)
	}
	r.forms.Pattern = pattern(r.parts)
	return r
}

// Forms are the forms that a worker replaces; nil for a nil Redactor.
func (r *Redactor) Forms() *Forms {
	if r == nil {
		return nil
	}
	return r.forms
}

// escapes are those of Python's repr and of JSON.
var escapes = strings.NewReplacer(`\`, `\\`, "\n", `\n`, "\r", `\r`, "\t", `\t`)

// basesOf lists the texts that count as secrets: the value, and its longer parts.
func basesOf(value string) []string {
	bases := []string{value}
	if lines := strings.Split(value, "\n"); len(lines) > 1 {
		for _, line := range lines {
			bases = append(bases, strings.TrimSpace(line))
		}
	}
	if value[0] == '[' || value[0] == '{' {
		var v any
		if json.Unmarshal([]byte(value), &v) == nil {
			bases = append(bases, leavesOf(v)...)
		}
	}
	return append(bases[:1], slices.DeleteFunc(bases[1:], func(base string) bool { return len([]rune(base)) < redactPart })...)
}

// looksOf lists the ways in which a part of a secret may be written in a text.
func looksOf(base string) []string {
	looks := []string{base}
	for range 2 { // the repr of several arguments contains the reprs of each
		for _, text := range looks {
			quoted, _ := json.Marshal(text)
			inner, escaped := string(quoted[1:len(quoted)-1]), escapes.Replace(text)
			looks = append(looks, inner, inASCII(inner), escaped, inASCII(strings.ReplaceAll(escaped, `"`, `\"`)),
				strings.ReplaceAll(escaped, `'`, `\'`), strings.ReplaceAll(escaped, `"`, `\"`))
		}
	}
	form := url.QueryEscape(base)
	full := strings.ReplaceAll(form, "+", "%20")
	return append(looks, form, full, strings.ReplaceAll(full, "%2F", "/"), url.PathEscape(base))
}

// inASCII is a JSON text with escapes for non-ASCII characters, as Python writes it.
func inASCII(text string) string {
	var made strings.Builder
	for _, char := range text {
		if char < utf8.RuneSelf {
			made.WriteRune(char)
			continue
		}
		for _, unit := range utf16.Encode([]rune{char}) {
			fmt.Fprintf(&made, `\u%04x`, unit)
		}
	}
	return made.String()
}

func codedOf(base string) (found []coded) {
	for _, encoding := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		for shift := range 3 {
			text := encoding.EncodeToString(append(make([]byte, shift), base...))
			if core := text[(shift*8+5)/6 : (shift+len(base))*8/6]; len(core) >= redactWhole {
				found = append(found, coded{core, shift > 0, (shift+len(base))%3 > 0})
			}
		}
	}
	return found
}

// leavesOf are the texts in a JSON value.
func leavesOf(v any) (leaves []string) {
	switch v := v.(type) {
	case string:
		leaves = append(leaves, strings.TrimSpace(v))
	case []any:
		for _, one := range v {
			leaves = append(leaves, leavesOf(one)...)
		}
	case map[string]any:
		for _, one := range v {
			leaves = append(leaves, leavesOf(one)...)
		}
	}
	return leaves
}

// Text returns s without secrets, and as UTF-8.
func (r *Redactor) Text(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if found := r.within(s); found != nil {
		return found.ReplaceAllLiteralString(s, mark)
	}
	return s
}

// within is the expression of the texts that are in s; nil without any. That of all texts would
// cost thousands of steps for each character.
func (r *Redactor) within(s string) *regexp.Regexp {
	if r == nil {
		return nil
	}
	var found []part
	s = strings.ToValidUTF8(s, "\uFFFD")
	for _, p := range r.parts {
		if strings.Contains(s, p.text) {
			found = append(found, p)
		}
	}
	if found == nil {
		return nil
	}
	return regexp.MustCompile(pattern(found))
}

// Apart returns the first place at or after at where s may be cut: through a secret, both halves
// would be shown.
func (r *Redactor) Apart(s string, at int) int {
	if secrets := r.within(s); secrets != nil {
		for _, found := range secrets.FindAllStringIndex(s, -1) {
			if found[0] < at {
				at = max(at, found[1])
			}
		}
	}
	return at
}

// Overlap is how many bytes at the edge of a piece may belong to a secret that
// continues in the next piece.
func (r *Redactor) Overlap() int {
	if r == nil {
		return 0
	}
	return r.longest - 1
}
