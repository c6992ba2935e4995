package venv

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// constraint is a list of version clauses that must all hold.
type constraint []clause

// clause compares the first numbers of a version.
type clause struct {
	op      string
	version version
	numbers int
}

type version [3]int

var (
	clausePattern  = regexp.MustCompile(`^(===?|[!<>~]=|[<>^=]|)\s*([^*]*?)(\.\*)?$`)
	versionPattern = regexp.MustCompile(`^(\d{1,9})(?:\.(\d{1,9}))?(?:\.(\d{1,9}))?`)
)

// parseConstraint reads a Python version constraint of a pyproject.toml: clauses like ">=3.11",
// "!=3.12.1", "~=3.11" or "==3.12.*", joined by commas. A bare version covers all versions below
// it: 3.12 is 3.12.anything. Poetry's "^3.11" means ">=3.11,<4".
func parseConstraint(text string) (constraint, error) {
	var all constraint
	for part := range strings.SplitSeq(text, ",") {
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		found := clausePattern.FindStringSubmatch(part)
		if found == nil {
			return nil, fmt.Errorf("%q is not a version", part)
		}
		v, written, err := parseVersion(found[2])
		if err != nil {
			return nil, err
		}
		c := clause{op: strings.Replace(found[1], "===", "==", 1), version: v, numbers: len(v)}
		if found[3] != "" {
			c.numbers = written
		}
		switch c.op {
		case "", "=":
			c = clause{"==", v, written}
		case "~=":
			if written < 2 {
				return nil, fmt.Errorf("%q needs a minor version", part)
			}
			all = append(all, clause{">=", v, len(v)})
			c = clause{"==", v, written - 1}
		case "^":
			all = append(all, clause{">=", v, len(v)})
			c = clause{"==", v, 1}
		}
		all = append(all, c)
	}
	return all, nil
}

// parseVersion reads the first numbers of a version and returns how many were written.
// A suffix like rc1 or +local is ignored.
func parseVersion(text string) (v version, written int, err error) {
	found := versionPattern.FindStringSubmatch(text)
	if found == nil {
		return v, 0, fmt.Errorf("%q is not a version", text)
	}
	for i, number := range found[1:] {
		if number != "" {
			v[i], _ = strconv.Atoi(number)
			written++
		}
	}
	return v, written, nil
}

func (c constraint) allows(v version) bool {
	return !slices.ContainsFunc(c, func(one clause) bool { return !one.allows(v) })
}

func (c clause) allows(v version) bool {
	order := slices.Compare(v[:c.numbers], c.version[:c.numbers])
	return slices.Contains([3][]string{{"<", "<=", "!="}, {"==", "<=", ">="}, {">", ">=", "!="}}[order+1], c.op)
}

// lower is the lowest minor version of Python 3 that the constraint names; 0
// when it has no lower bound.
func (c constraint) lower() (minor int) {
	for _, one := range c {
		if (one.op == ">=" || one.op == "==" || one.op == ">") && one.version[0] == 3 {
			minor = max(minor, one.version[1])
		}
	}
	return minor
}
