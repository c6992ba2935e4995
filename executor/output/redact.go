package output

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// mark stands in the place of a secret; redaction.py says the same.
const mark = "***"

// Redactor takes an index's secrets out of what its processes write past the
// worker: to descriptors 1 and 2, at import, and as last words. redaction.py is
// the same for what goes through it. A nil Redactor changes nothing. Safe for
// concurrent use.
type Redactor struct {
	pattern *regexp.Regexp
	longest int // bytes of the longest text that is replaced
}

// Lengths in characters, as in redaction.py.
const (
	redactPart  = 8 // from which a line or a part of a secret is one itself
	redactWhole = 4 // from which a secret is replaced inside of words too
)

// NewRedactor makes one for the values; nil when there is nothing to keep secret.
func NewRedactor(values []string) *Redactor {
	var long, short []string
	for _, value := range values {
		value = strings.TrimSpace(value)
		switch size := len([]rune(value)); {
		case size < 2:
		case size < redactWhole:
			short = append(short, value)
		default:
			long = append(long, formsOf(value)...)
		}
	}
	if len(long)+len(short) == 0 {
		return nil
	}
	slices.SortFunc(long, func(a, b string) int { return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b)) })
	long = slices.Compact(long)
	slices.Sort(short)
	short = slices.Compact(short)
	slices.SortStableFunc(short, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	r := &Redactor{}
	var parts []string
	for _, value := range values {
		if value = strings.TrimSpace(value); len([]rune(value)) >= redactWhole {
			for _, base := range basesOf(value) {
				for _, part := range codedOf(base) {
					parts = append(parts, part)
					r.longest = max(r.longest, len(base)*2)
				}
			}
		}
	}
	slices.SortFunc(parts, func(a, b string) int { return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b)) })
	parts = slices.Compact(parts)
	for _, text := range long {
		parts = append(parts, regexp.QuoteMeta(text))
		r.longest = max(r.longest, len(text))
	}
	for _, text := range short {
		edge := func(c byte) string {
			if c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' {
				return `\b`
			}
			return ""
		}
		parts = append(parts, edge(text[0])+regexp.QuoteMeta(text)+edge(text[len(text)-1]))
		r.longest = max(r.longest, len(text))
	}
	r.pattern = regexp.MustCompile(strings.Join(parts, "|"))
	return r
}

// escapes are those of a text in Python's repr and in JSON.
var escapes = strings.NewReplacer(`\`, `\\`, "\n", `\n`, "\r", `\r`, "\t", `\t`)

// basesOf lists what counts as a secret: the value, and its longer parts.
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

// formsOf lists how a secret may look in a text.
func formsOf(value string) []string {
	var forms []string
	for _, base := range basesOf(value) {
		looks := []string{base}
		for range 2 { // the repr of several arguments holds the reprs of each
			for _, text := range looks {
				quoted, _ := json.Marshal(text)
				escaped := escapes.Replace(text)
				looks = append(looks, string(quoted[1:len(quoted)-1]), escaped,
					strings.ReplaceAll(escaped, `'`, `\'`), strings.ReplaceAll(escaped, `"`, `\"`))
			}
		}
		forms = append(forms, looks...)
		forms = append(forms, url.QueryEscape(base), url.PathEscape(base), strings.ReplaceAll(url.PathEscape(base), "%2F", "/"))
	}
	return forms
}

// codedOf are expressions for what base64 makes of a secret wherever it stands in
// a longer text: what depends on nothing else, with the characters beside it that
// hold a part of it.
func codedOf(base string) (found []string) {
	const edge = "[A-Za-z0-9+/_-]?"
	for _, encoding := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		for shift := range 3 {
			text := encoding.EncodeToString(append(make([]byte, shift), base...))
			core := text[(shift*8+5)/6 : (shift+len(base))*8/6]
			if len(core) < redactWhole {
				continue
			}
			part := regexp.QuoteMeta(core)
			if shift > 0 {
				part = edge + part
			}
			if (shift+len(base))%3 > 0 {
				part += edge
			}
			found = append(found, part)
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

// Text is s without secrets.
func (r *Redactor) Text(s string) string {
	if r == nil {
		return s
	}
	return r.pattern.ReplaceAllLiteralString(s, mark)
}

// Overlap is how many bytes at the edge of a piece may belong to a secret that
// goes on in the next.
func (r *Redactor) Overlap() int {
	if r == nil {
		return 0
	}
	return r.longest - 1
}
