package tool

import (
	"encoding/json"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// node is the part of a schema that the [scanner] can check by itself. It is
// built to be right when it says yes: every keyword that it does not fully
// understand makes it opaque, which sends the value to the library.
type node struct {
	opaque   bool            // not understood: always ask the library
	shaped   bool            // kinds is final and there are no branches
	kinds    kind            // allowed kinds
	branches map[kind]*node  // of an anyOf: what to check for a kind; missing: this node itself
	props    []property      // declared properties
	byName   map[string]int  // of props, when there are many
	closed   bool            // other properties are refused
	rest     *node           // schema of other properties; nil: anything
	required uint64          // bits of the required properties
	minProps int             // least number of members
	maxProps int             // most members; -1: any
	items    *node           // schema of every item; nil: anything
	minItems int             // least number of items
	maxItems int             // most items; -1: any
	minLen   int             // least number of characters
	maxLen   int             // most characters; -1: any
	texts    bool            // texts are looked at by the library (pattern, format, …)
	enum     map[string]bool // allowed values by their plain JSON text; nil: any
	bounds   bool            // numbers are bounded:
	lo, hi   float64         // a double strictly between these fits
	loInt    int64           // an integer literal from loInt to hiInt fits
	hiInt    int64
}

type property struct {
	name string
	node *node
	bit  uint64
}

// linearProps is up to how many declared properties are searched one by one.
const linearProps = 8

// nodes builds the nodes of one schema.
type nodes struct {
	root any
	refs map[string]*node
}

// buildNode returns the node of a decoded schema (numbers as json.Number); nil
// means that everything fits.
func buildNode(schema any) *node {
	b := &nodes{root: schema, refs: map[string]*node{}}
	if b.foreign(schema) {
		return &node{opaque: true}
	}
	return b.build(schema)
}

// foreign says whether a schema changes the meaning of references or keywords,
// so that nothing in it can be read locally.
func (b *nodes) foreign(schema any) bool {
	switch v := schema.(type) {
	case map[string]any:
		for key, child := range v {
			switch key {
			case "$id", "$anchor", "$dynamicAnchor", "$dynamicRef", "$recursiveRef", "$recursiveAnchor", "$vocabulary", "id":
				if _, ok := child.(string); ok || key == "$vocabulary" {
					return true
				}
			case "$schema":
				if child != draft2020 && child != draft2020+"#" {
					return true
				}
			case "enum", "const", "default", "examples":
				continue
			}
			if b.foreign(child) {
				return true
			}
		}
	case []any:
		for _, child := range v {
			if b.foreign(child) {
				return true
			}
		}
	}
	return false
}

// assertions are the keywords of 2020-12, and of the drafts before it, that can
// refuse a value and that build does not read.
var assertions = map[string]bool{
	"$ref": true, "allOf": true, "anyOf": true, "oneOf": true, "not": true, "if": true, "then": true, "else": true,
	"dependentSchemas": true, "dependentRequired": true, "dependencies": true, "patternProperties": true,
	"propertyNames": true, "unevaluatedProperties": true, "unevaluatedItems": true, "prefixItems": true,
	"additionalItems": true, "contains": true, "minContains": true, "maxContains": true, "uniqueItems": true,
	"multipleOf": true, "disallow": true, "extends": true, "divisibleBy": true,
	"$id": true, "$anchor": true, "$dynamicAnchor": true, "$dynamicRef": true, "$recursiveRef": true,
}

func (b *nodes) build(schema any) *node {
	switch v := schema.(type) {
	case bool:
		if v {
			return nil
		}
		return &node{opaque: true}
	case map[string]any:
		if ref, ok := v["$ref"].(string); ok {
			return b.reference(ref, v)
		}
		n := &node{}
		b.fill(n, v)
		if n.anything() {
			return nil
		}
		return n
	default:
		return &node{opaque: true}
	}
}

// anything says whether the node has no constraint at all.
func (n *node) anything() bool {
	return !n.opaque && n.kinds == kindAny && n.branches == nil && len(n.props) == 0 && !n.closed && n.rest == nil &&
		n.required == 0 && n.minProps == 0 && n.maxProps < 0 && n.items == nil && n.minItems == 0 && n.maxItems < 0 &&
		n.minLen == 0 && n.maxLen < 0 && !n.texts && n.enum == nil && !n.bounds
}

// reference follows a $ref into the schema's own definitions.
func (b *nodes) reference(ref string, schema map[string]any) *node {
	for key := range schema {
		if _, known := handled[key]; key != "$ref" && (known || assertions[key]) {
			return &node{opaque: true} // a sibling that asserts something too
		}
	}
	if n, ok := b.refs[ref]; ok {
		return n
	}
	var target any
	switch {
	case ref == "#":
		target = b.root
	default:
		path, ok := strings.CutPrefix(ref, "#/")
		group, name, ok2 := strings.Cut(path, "/")
		if !ok || !ok2 || group != "$defs" && group != "definitions" || strings.ContainsAny(name, "/~%") {
			return &node{opaque: true}
		}
		top, _ := b.root.(map[string]any)
		defs, _ := top[group].(map[string]any)
		if target, ok = defs[name]; !ok {
			return &node{opaque: true}
		}
	}
	object, ok := target.(map[string]any)
	if !ok {
		return &node{opaque: true}
	}
	if _, chained := object["$ref"]; chained {
		return &node{opaque: true} // possibly a circle of references
	}
	n := &node{}
	b.refs[ref] = n // before its content: a recursive schema meets itself
	b.fill(n, object)
	return n
}

// handled are the keywords that fill reads.
var handled = map[string]struct{}{
	"type": {}, "properties": {}, "required": {}, "additionalProperties": {}, "minProperties": {}, "maxProperties": {},
	"items": {}, "minItems": {}, "maxItems": {}, "minLength": {}, "maxLength": {}, "pattern": {}, "format": {},
	"contentEncoding": {}, "contentMediaType": {}, "contentSchema": {}, "enum": {}, "const": {},
	"minimum": {}, "maximum": {}, "exclusiveMinimum": {}, "exclusiveMaximum": {}, "anyOf": {},
}

func (b *nodes) fill(n *node, schema map[string]any) {
	n.kinds, n.maxProps, n.maxItems, n.maxLen = kindAny, -1, -1, -1
	own := 0 // keywords beside anyOf
	for key := range schema {
		if _, ok := handled[key]; ok {
			if key != "anyOf" {
				own++
			}
		} else if assertions[key] {
			n.opaque = true
			return
		}
	}
	if branches, ok := schema["anyOf"]; ok {
		list, ok := branches.([]any)
		if !ok || own > 0 {
			n.opaque = true
			return
		}
		b.fillBranches(n, list)
		return
	}
	ok := true
	if t, has := schema["type"]; has {
		n.kinds, ok = kindsOf(t)
		n.opaque = n.opaque || !ok
	}
	n.shaped = true
	n.minProps = n.count(schema, "minProperties", 0)
	n.maxProps = n.count(schema, "maxProperties", -1)
	n.minItems = n.count(schema, "minItems", 0)
	n.maxItems = n.count(schema, "maxItems", -1)
	n.minLen = n.count(schema, "minLength", 0)
	n.maxLen = n.count(schema, "maxLength", -1)
	for _, key := range []string{"pattern", "format", "contentEncoding", "contentMediaType", "contentSchema"} {
		if _, has := schema[key]; has {
			n.texts = true
		}
	}
	if items, has := schema["items"]; has {
		n.items = b.build(items)
	}
	b.fillProperties(n, schema)
	n.fillEnum(schema)
	n.fillBounds(schema)
}

func (n *node) count(schema map[string]any, key string, absent int) int {
	v, has := schema[key]
	if !has {
		return absent
	}
	number, _ := v.(json.Number)
	i, err := strconv.Atoi(number.String())
	if err != nil || i < 0 {
		n.opaque = true
	}
	return i
}

func kindsOf(t any) (kind, bool) {
	names, ok := t.([]any)
	if !ok {
		names = []any{t}
	}
	var kinds kind
	for _, name := range names {
		switch name {
		case "null":
			kinds |= kindNull
		case "boolean":
			kinds |= kindBoolean
		case "object":
			kinds |= kindObject
		case "array":
			kinds |= kindArray
		case "string":
			kinds |= kindText
		case "number":
			kinds |= kindNumber
		case "integer":
			kinds |= kindInteger
		default:
			return 0, false
		}
	}
	return kinds, true
}

// fillBranches takes an anyOf whose branches can be told apart by the kind of
// the value: what fits the first branch of its kind fits the whole.
func (b *nodes) fillBranches(n *node, list []any) {
	n.branches = map[kind]*node{}
	for _, item := range list {
		branch := b.build(item)
		if branch == nil { // anything goes
			*n = node{kinds: kindAny, maxProps: -1, maxItems: -1, maxLen: -1}
			return
		}
		if branch.opaque || !branch.shaped { // also one that is being built: it has no kinds yet
			n.opaque = true
			return
		}
		kinds := branch.kinds
		if kinds&kindInteger != 0 {
			kinds |= kindNumber
		}
		for k := kindNull; k <= kindNumber; k <<= 1 {
			if kinds&k != 0 && n.branches[k] == nil {
				n.branches[k] = branch
			}
		}
	}
}

func (b *nodes) fillProperties(n *node, schema map[string]any) {
	props, _ := schema["properties"].(map[string]any)
	names := make([]string, 0, len(props))
	for name := range props {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		n.props = append(n.props, property{name: name, node: b.build(props[name])})
	}
	switch more := schema["additionalProperties"].(type) {
	case nil:
	case bool:
		n.closed = !more
	default:
		n.rest = b.build(more)
	}
	list, _ := schema["required"].([]any)
	if len(list) > 64 {
		n.opaque = true
		return
	}
	for i, item := range list {
		name, _ := item.(string)
		at := slices.IndexFunc(n.props, func(p property) bool { return p.name == name })
		if at < 0 { // required, but not declared
			if n.closed || n.rest != nil {
				n.opaque = true
				return
			}
			n.props = append(n.props, property{name: name})
			at = len(n.props) - 1
		}
		if n.props[at].bit == 0 {
			n.props[at].bit = 1 << i
			n.required |= 1 << i
		}
	}
	if len(n.props) > linearProps {
		n.byName = make(map[string]int, len(n.props))
		for i, p := range n.props {
			n.byName[p.name] = i
		}
	}
}

func (n *node) fillEnum(schema map[string]any) {
	values, has := schema["enum"].([]any)
	if c, single := schema["const"]; single {
		if has {
			n.opaque = true
			return
		}
		values, has = []any{c}, true
	}
	if !has {
		return
	}
	n.enum = make(map[string]bool, len(values))
	for _, v := range values {
		switch v := v.(type) {
		case string:
			n.enum[quotePlain(v)] = true
		case json.Number:
			n.enum[v.String()] = true
		case bool:
			n.enum[strconv.FormatBool(v)] = true
		case nil:
			n.enum["null"] = true
		}
	}
}

// quotePlain quotes a text as the scanner meets it when it has no escapes.
func quotePlain(text string) string { return `"` + text + `"` }

func (n *node) fillBounds(schema map[string]any) {
	n.lo, n.hi = -1e308, 1e308
	n.loInt, n.hiInt = -1<<62, 1<<62
	for _, key := range []string{"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"} {
		v, has := schema[key]
		if !has {
			continue
		}
		n.bounds = true
		number, ok := v.(json.Number)
		rat, ok2 := new(big.Rat).SetString(number.String())
		if !ok || !ok2 {
			n.opaque = true
			return
		}
		f, _ := rat.Float64()
		floor := new(big.Int).Div(rat.Num(), rat.Denom()) // Euclid's: rounds down, the denominator is positive
		if !floor.IsInt64() || floor.Int64() < -1<<61 || floor.Int64() > 1<<61 {
			n.opaque = true
			return
		}
		below := floor.Int64()
		switch key {
		case "minimum":
			if !rat.IsInt() {
				below++
			}
			n.lo, n.loInt = max(n.lo, f), max(n.loInt, below)
		case "exclusiveMinimum":
			n.lo, n.loInt = max(n.lo, f), max(n.loInt, below+1)
		case "maximum":
			n.hi, n.hiInt = min(n.hi, f), min(n.hiInt, below)
		case "exclusiveMaximum":
			if rat.IsInt() {
				below--
			}
			n.hi, n.hiInt = min(n.hi, f), min(n.hiInt, below)
		}
	}
}

// branch returns the node that applies to a value of kind k.
func (n *node) branch(k kind) *node {
	if n.branches == nil {
		return n
	}
	if b := n.branches[k]; b != nil {
		return b
	}
	return opaqueNode
}

var opaqueNode = &node{opaque: true}

func (n *node) fitsKind(k kind) bool { return n.kinds&k != 0 && n.enum == nil }

// property returns the schema of a member, its bit if it is required, and
// whether the member is allowed.
func (n *node) property(name []byte) (child *node, bit uint64, ok bool) {
	if n.byName != nil {
		if i, has := n.byName[string(name)]; has {
			return n.props[i].node, n.props[i].bit, true
		}
	} else {
		for i := range n.props {
			if n.props[i].name == string(name) {
				return n.props[i].node, n.props[i].bit, true
			}
		}
	}
	return n.rest, 0, !n.closed
}

func (n *node) fitsText(raw []byte, escaped bool, quoted []byte) bool {
	if n.kinds&kindText == 0 || n.texts {
		return false
	}
	if n.enum != nil && (escaped || !n.enum[string(quoted)]) {
		return false
	}
	if n.minLen > 0 || n.maxLen >= 0 {
		if escaped {
			return false
		}
		length := utf8.RuneCount(raw)
		return length >= n.minLen && (n.maxLen < 0 || length <= n.maxLen)
	}
	return true
}

func (n *node) fitsNumber(text []byte, integer bool) bool {
	if n.kinds&kindNumber == 0 && (n.kinds&kindInteger == 0 || !integer) {
		return false
	}
	if n.enum != nil && !n.enum[string(text)] {
		return false
	}
	if !n.bounds {
		return true
	}
	if integer && len(text) <= 18 {
		i, err := strconv.ParseInt(string(text), 10, 64)
		return err == nil && i >= n.loInt && i <= n.hiInt
	}
	// Rounding to a double keeps the order, so strictly inside is certain.
	f, err := strconv.ParseFloat(string(text), 64)
	return err == nil && f > n.lo && f < n.hi
}

func (n *node) fitsWord(word string, k kind) bool {
	return n.kinds&k != 0 && (n.enum == nil || n.enum[word])
}
