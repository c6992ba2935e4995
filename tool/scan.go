package tool

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"
)

// Bounds on the JSON that is looked at, whatever a schema allows.
const (
	// maxDepth is how deep arrays and objects may nest. Python's own reader
	// gives up near 1,000; a recursive reader must give up before its stack does.
	maxDepth = 256
	// maxNumber is how long a number's text may be: Python refuses integers of
	// more than 4,300 digits, and exact comparison is quadratic.
	maxNumber = 1000
	// maxProblems bounds the list of problems of one call.
	maxProblems = 100
	// linearKeys is up to how many keys of one object are compared pairwise.
	linearKeys = 24
)

// scanner reads JSON text in one pass: it checks the syntax more strictly than
// encoding/json (UTF-8, repeated keys, depth, size of numbers) and, beside that,
// whether the value certainly fits a compiled [node]. It never says that a value
// does not fit: it is "unsure" then, and the library is asked.
type scanner struct {
	data     []byte
	pos      int
	depth    int
	path     []segment
	keys     [][]byte   // keys of the open objects, innermost last
	err      *malformed // the scan stops
	repeated []Problem
	unsure   bool
}

// segment is one step of the path to the value being scanned.
type segment struct {
	key   []byte // nil: index counts
	index int
}

var scanners = sync.Pool{New: func() any { return new(scanner) }}

// scan reads data against n (nil: anything). It returns the scanner, which the
// caller gives back with release.
func scan(data []byte, n *node) *scanner {
	s := scanners.Get().(*scanner)
	s.data, s.pos, s.depth, s.err, s.repeated, s.unsure = data, 0, 0, nil, nil, false
	s.path, s.keys = s.path[:0], s.keys[:0]
	s.space()
	if s.value(n) {
		s.space()
		if s.pos != len(s.data) {
			s.fail("more text after the value")
		}
	}
	return s
}

func (s *scanner) release() {
	s.data, s.err, s.repeated = nil, nil, nil
	clear(s.path[:cap(s.path)])
	clear(s.keys[:cap(s.keys)])
	if cap(s.keys) <= 1024 {
		scanners.Put(s)
	}
}

// checkJSON says whether data is one JSON value within our bounds, without
// repeated keys.
func checkJSON(data []byte) error {
	s := scan(data, nil)
	defer s.release()
	if s.err != nil { // a nil *malformed would be an error
		return s.err
	}
	if len(s.repeated) > 0 {
		return errors.New(s.repeated[0].Message)
	}
	return nil
}

// checkObject is checkJSON for a value that must be an object.
func checkObject(data []byte) error {
	if err := checkJSON(data); err != nil {
		return err
	}
	if kindOf(data) != kindObject {
		return fmt.Errorf("must be a JSON object, not %s", article(kindOf(data)))
	}
	return nil
}

// malformed says what of a text is no JSON, or is more than we take.
type malformed struct {
	what string
	pos  int
	// Of a number that we do not take: where it is, what we do take, and the
	// number, shortened. Else expected is empty.
	pointer, expected, got string
}

func (m *malformed) Error() string { return fmt.Sprintf("%s at byte %d", m.what, m.pos) }

// problem tells of the text as a whole, such as "the arguments", or of the
// number in it. verb is "is" or "are".
func (m *malformed) problem(whole, verb string) Problem {
	if m.expected == "" {
		return Problem{
			Expected: "a JSON object", Got: "malformed text",
			Message: fmt.Sprintf("%s %s %v of %s", whole, verb, m, whole),
		}
	}
	if m.pointer != "" {
		whole, verb = m.pointer, "is"
	}
	return Problem{Pointer: m.pointer, Expected: m.expected, Got: m.got, Message: whole + " " + verb + " " + m.what}
}

func (s *scanner) fail(what string) bool {
	if s.err == nil {
		s.err = &malformed{what: "not valid JSON: " + what, pos: s.pos}
	}
	return false
}

// failNumber refuses the number that began at start, which JSON allows.
func (s *scanner) failNumber(start int, what, expected string) {
	got := string(s.data[start:s.pos])
	if len(got) > 40 {
		got = got[:40] + "…"
	}
	s.err = &malformed{what: what, pos: start, pointer: s.pointer(), expected: expected, got: got}
}

func (s *scanner) space() {
	for s.pos < len(s.data) {
		switch s.data[s.pos] {
		case ' ', '\t', '\n', '\r':
			s.pos++
		default:
			return
		}
	}
}

// value scans one value against n. It returns false if the text is malformed.
func (s *scanner) value(n *node) bool {
	if s.pos >= len(s.data) {
		return s.fail("the text ends where a value should be")
	}
	if n != nil {
		n = n.branch(kindAt(s.data[s.pos]))
		if n.opaque {
			s.unsure = true
			n = nil
		}
	}
	switch c := s.data[s.pos]; {
	case c == '{':
		return s.object(n)
	case c == '[':
		return s.array(n)
	case c == '"':
		start := s.pos
		raw, escaped, ok := s.text()
		if ok && n != nil && !n.fitsText(raw, escaped, s.data[start:s.pos]) {
			s.unsure = true
		}
		return ok
	case c == '-' || c >= '0' && c <= '9':
		start := s.pos
		integer, ok := s.number()
		if ok && n != nil && !n.fitsNumber(s.data[start:s.pos], integer) {
			s.unsure = true
		}
		return ok
	case c == 't':
		return s.word("true", n, kindBoolean)
	case c == 'f':
		return s.word("false", n, kindBoolean)
	case c == 'n':
		return s.word("null", n, kindNull)
	default:
		return s.fail("no JSON value begins with " + strconv.QuoteRune(rune(c)))
	}
}

func (s *scanner) word(word string, n *node, k kind) bool {
	if len(s.data)-s.pos < len(word) || string(s.data[s.pos:s.pos+len(word)]) != word {
		return s.fail("a word that is not true, false or null")
	}
	s.pos += len(word)
	if n != nil && !n.fitsWord(word, k) {
		s.unsure = true
	}
	return true
}

func (s *scanner) enter() bool {
	s.depth++
	if s.depth > maxDepth {
		s.err = &malformed{what: fmt.Sprintf("nested deeper than %d levels", maxDepth), pos: s.pos}
		return false
	}
	s.pos++
	s.space()
	return true
}

func (s *scanner) object(n *node) bool {
	if n != nil && !n.fitsKind(kindObject) {
		s.unsure, n = true, nil
	}
	if !s.enter() {
		return false
	}
	base := len(s.keys)
	s.path = append(s.path, segment{})
	var many map[string]struct{}
	var seen uint64 // bits of the required properties
	count := 0
	if s.pos < len(s.data) && s.data[s.pos] == '}' {
		s.pos++
	} else {
		for {
			if s.pos >= len(s.data) || s.data[s.pos] != '"' {
				return s.fail("an object's key must be text")
			}
			key, escaped, ok := s.text()
			if !ok {
				return false
			}
			if escaped {
				key = unescape(key)
			}
			s.path[len(s.path)-1].key = key
			if !s.addKey(base, key, &many) {
				return false
			}
			count++
			s.space()
			if s.pos >= len(s.data) || s.data[s.pos] != ':' {
				return s.fail("a colon is missing after a key")
			}
			s.pos++
			s.space()
			var child *node
			if n != nil {
				var bit uint64
				var known bool
				child, bit, known = n.property(key)
				seen |= bit
				if !known {
					s.unsure = true
				}
			}
			if !s.value(child) {
				return false
			}
			s.space()
			if s.pos >= len(s.data) {
				return s.fail("an object is not closed")
			}
			c := s.data[s.pos]
			if c == '}' {
				s.pos++
				break
			}
			if c != ',' {
				return s.fail("a comma is missing between members")
			}
			s.pos++
			s.space()
		}
	}
	if n != nil && (seen&n.required != n.required || count < n.minProps || n.maxProps >= 0 && count > n.maxProps) {
		s.unsure = true
	}
	s.keys = s.keys[:base]
	s.path = s.path[:len(s.path)-1]
	s.depth--
	return true
}

// addKey notes a key of the object whose keys begin at base, and a repetition.
func (s *scanner) addKey(base int, key []byte, many *map[string]struct{}) bool {
	repeated := false
	if *many == nil {
		for _, k := range s.keys[base:] {
			if string(k) == string(key) {
				repeated = true
				break
			}
		}
		s.keys = append(s.keys, key)
		if len(s.keys)-base > linearKeys {
			*many = make(map[string]struct{}, 2*linearKeys)
			for _, k := range s.keys[base:] {
				(*many)[string(k)] = struct{}{}
			}
		}
	} else if _, repeated = (*many)[string(key)]; !repeated {
		(*many)[string(key)] = struct{}{}
	}
	if repeated {
		if len(s.repeated) < maxProblems {
			pointer := s.pointer()
			s.repeated = append(s.repeated, Problem{
				Pointer: pointer, Expected: "one value", Got: "several",
				Message: fmt.Sprintf("%s is given more than once", pointer),
			})
		}
	}
	return true
}

func (s *scanner) array(n *node) bool {
	if n != nil && !n.fitsKind(kindArray) {
		s.unsure, n = true, nil
	}
	if !s.enter() {
		return false
	}
	s.path = append(s.path, segment{})
	count := 0
	if s.pos < len(s.data) && s.data[s.pos] == ']' {
		s.pos++
	} else {
		for {
			s.path[len(s.path)-1].index = count
			count++
			var child *node
			if n != nil {
				child = n.items
			}
			if !s.value(child) {
				return false
			}
			s.space()
			if s.pos >= len(s.data) {
				return s.fail("an array is not closed")
			}
			c := s.data[s.pos]
			if c == ']' {
				s.pos++
				break
			}
			if c != ',' {
				return s.fail("a comma is missing between items")
			}
			s.pos++
			s.space()
		}
	}
	if n != nil && (count < n.minItems || n.maxItems >= 0 && count > n.maxItems) {
		s.unsure = true
	}
	s.path = s.path[:len(s.path)-1]
	s.depth--
	return true
}

// text scans a string and returns what is between its quotes, and whether that
// has escapes.
func (s *scanner) text() (raw []byte, escaped, ok bool) {
	s.pos++
	start := s.pos
	ascii := true
	for s.pos < len(s.data) {
		switch c := s.data[s.pos]; {
		case c == '"':
			raw = s.data[start:s.pos]
			if !ascii && !utf8.Valid(raw) {
				s.pos = start + len(raw) - len(afterUTF8(raw))
				return nil, false, s.fail("text that is not UTF-8")
			}
			s.pos++
			return raw, escaped, true
		case c == '\\':
			escaped = true
			if !s.escape() {
				return nil, false, false
			}
		case c < 0x20:
			return nil, false, s.fail("a control character inside text")
		default:
			ascii = ascii && c < utf8.RuneSelf
			s.pos++
		}
	}
	return nil, false, s.fail("text is not closed")
}

// afterUTF8 returns what comes after the part of text that is UTF-8.
func afterUTF8(text []byte) []byte {
	for len(text) > 0 {
		r, size := utf8.DecodeRune(text)
		if r == utf8.RuneError && size == 1 {
			break
		}
		text = text[size:]
	}
	return text
}

func (s *scanner) escape() bool {
	s.pos++
	if s.pos >= len(s.data) {
		return s.fail("text is not closed")
	}
	switch s.data[s.pos] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		s.pos++
		return true
	case 'u':
		if len(s.data)-s.pos < 5 {
			return s.fail("text is not closed")
		}
		for _, c := range s.data[s.pos+1 : s.pos+5] {
			if (c < '0' || c > '9') && (c < 'a' || c > 'f') && (c < 'A' || c > 'F') {
				return s.fail(`\u without four hexadecimal digits`)
			}
		}
		s.pos += 5
		return true
	default:
		return s.fail("an unknown escape inside text")
	}
}

// number scans a number and returns whether it is written as an integer.
func (s *scanner) number() (integer, ok bool) {
	start := s.pos
	integer = true
	if s.data[s.pos] == '-' {
		s.pos++
	}
	switch {
	case s.pos < len(s.data) && s.data[s.pos] == '0':
		s.pos++
	case !s.digits():
		return false, s.fail("a number without digits")
	}
	if s.pos < len(s.data) && s.data[s.pos] == '.' {
		integer = false
		s.pos++
		if !s.digits() {
			return false, s.fail("a number without digits after its point")
		}
	}
	if s.pos < len(s.data) && (s.data[s.pos] == 'e' || s.data[s.pos] == 'E') {
		integer = false
		s.pos++
		if s.pos < len(s.data) && (s.data[s.pos] == '+' || s.data[s.pos] == '-') {
			s.pos++
		}
		if !s.digits() {
			return false, s.fail("a number without digits in its exponent")
		}
	}
	text := s.data[start:s.pos]
	if len(text) > maxNumber {
		s.failNumber(start, fmt.Sprintf("a number of more than %d characters", maxNumber), fmt.Sprintf("a number of at most %d characters", maxNumber))
		return false, false
	}
	if !integer {
		// Neither Python's float nor exact arithmetic should meet 1e999999999;
		// 1e-999999999 rounds to 0 without an error, so look at the exponent too.
		if !sizedExponent(text) {
			s.failNumber(start, "a number outside the range of a double", "a number in the range of a double")
			return false, false
		}
	}
	return integer, true
}

// sizedExponent says whether a number that is no integer literal is finite as a
// double and has an exponent of at most three digits.
func sizedExponent(text []byte) bool {
	i := len(text)
	for j, c := range text {
		if c == 'e' || c == 'E' {
			i = j
			break
		}
	}
	if i == len(text) {
		return len(text) < 300 || finite(text)
	}
	exponent := strings.TrimLeft(strings.TrimLeft(string(text[i+1:]), "+-"), "0")
	return len(exponent) <= 3 && finite(text)
}

func finite(text []byte) bool {
	_, err := strconv.ParseFloat(string(text), 64)
	return err == nil
}

func (s *scanner) digits() bool {
	start := s.pos
	for s.pos < len(s.data) && s.data[s.pos] >= '0' && s.data[s.pos] <= '9' {
		s.pos++
	}
	return s.pos > start
}

// pointer returns the JSON Pointer to the value being scanned.
func (s *scanner) pointer() string {
	var b strings.Builder
	for _, seg := range s.path {
		b.WriteByte('/')
		if seg.key != nil {
			b.WriteString(escapePointer(string(seg.key)))
		} else {
			b.WriteString(strconv.Itoa(seg.index))
		}
	}
	return b.String()
}

var pointerEscapes = strings.NewReplacer("~", "~0", "/", "~1")

func escapePointer(key string) string { return pointerEscapes.Replace(key) }

// unescape decodes the inside of a JSON string that was scanned already.
func unescape(raw []byte) []byte {
	quoted := make([]byte, 0, len(raw)+2)
	quoted = append(quoted, '"')
	quoted = append(quoted, raw...)
	quoted = append(quoted, '"')
	var text string
	if json.Unmarshal(quoted, &text) != nil {
		return raw
	}
	return []byte(text)
}

// kind is the kind of a JSON value, as a bit.
type kind uint8

const (
	kindNull kind = 1 << iota
	kindBoolean
	kindObject
	kindArray
	kindText
	kindNumber
	kindInteger // in schemas only: a number without a fraction
)

const kindAny = kindNull | kindBoolean | kindObject | kindArray | kindText | kindNumber

// kindAt returns the kind of the value that begins with c.
func kindAt(c byte) kind {
	switch c {
	case '{':
		return kindObject
	case '[':
		return kindArray
	case '"':
		return kindText
	case 't', 'f':
		return kindBoolean
	case 'n':
		return kindNull
	default:
		return kindNumber
	}
}

// kindOf returns the kind of a value that was scanned already, 0 for no value.
func kindOf(data []byte) kind {
	for _, c := range data {
		if c != ' ' && c != '\t' && c != '\n' && c != '\r' {
			return kindAt(c)
		}
	}
	return 0
}

// article names a kind in a sentence.
func article(k kind) string {
	switch k {
	case kindNull:
		return "null"
	case kindBoolean:
		return "a boolean"
	case kindObject:
		return "an object"
	case kindArray:
		return "an array"
	case kindText:
		return "a string"
	case kindNumber:
		return "a number"
	default:
		return "nothing"
	}
}
