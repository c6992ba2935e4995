package venv

import (
	"fmt"
	"strconv"
	"strings"
)

// constraint is a list of version clauses that must all hold.
type constraint []clause

type clause struct {
	op      string
	version []int
	prefix  bool // ends in .*
}

// parseConstraint reads a Python version constraint as pyproject.toml has it:
// clauses like ">=3.11", "!=3.12.1", "~=3.11", "==3.12.*", joined by commas. A
// bare version means that version and what is below it: 3.12 is 3.12.anything.
// "^3.11", of another tool, means ">=3.11,<4".
func parseConstraint(text string) (constraint, error) {
	var all constraint
	for _, part := range strings.Split(text, ",") {
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		op := ""
		for _, known := range []string{"===", "==", "!=", ">=", "<=", "~=", ">", "<", "^", "="} {
			if strings.HasPrefix(part, known) {
				op = known
				break
			}
		}
		c := clause{op: op}
		number := strings.TrimSpace(strings.TrimPrefix(part, op))
		if stripped, ok := strings.CutSuffix(number, ".*"); ok {
			c.prefix, number = true, stripped
		}
		version, err := parseVersion(number)
		if err != nil {
			return nil, err
		}
		c.version = version
		switch op {
		case "", "=":
			c.op, c.prefix = "==", true
		case "===":
			c.op = "=="
		case "~=":
			if len(version) < 2 {
				return nil, fmt.Errorf("%q needs a minor version", part)
			}
			all = append(all, clause{op: ">=", version: version})
			c.op, c.prefix, c.version = "==", true, version[:len(version)-1]
		case "^":
			all = append(all, clause{op: ">=", version: version})
			c.op, c.version = "<", []int{version[0] + 1}
		}
		all = append(all, c)
	}
	return all, nil
}

// parseVersion reads the release numbers of a version; what follows them, like
// rc1 or +local, is ignored.
func parseVersion(text string) ([]int, error) {
	var numbers []int
	for i, part := range strings.Split(text, ".") {
		digits := 0
		for digits < len(part) && part[digits] >= '0' && part[digits] <= '9' {
			digits++
		}
		if digits == 0 {
			if i == 0 {
				return nil, fmt.Errorf("%q is not a version", text)
			}
			break
		}
		n, err := strconv.Atoi(part[:digits])
		if err != nil {
			return nil, fmt.Errorf("%q is not a version", text)
		}
		numbers = append(numbers, n)
		if digits < len(part) {
			break
		}
	}
	return numbers, nil
}

func (c constraint) allows(version string) bool {
	v, err := parseVersion(version)
	if err != nil {
		return false
	}
	for _, one := range c {
		if !one.allows(v) {
			return false
		}
	}
	return true
}

func (c clause) allows(v []int) bool {
	order := compare(v, c.version)
	if c.prefix {
		order = compare(v[:min(len(v), len(c.version))], c.version)
	}
	switch c.op {
	case "==":
		return order == 0
	case "!=":
		return order != 0
	case ">=":
		return order >= 0
	case "<=":
		return order <= 0
	case ">":
		return order > 0
	default:
		return order < 0
	}
}

// lower is the lowest minor version that the constraint speaks of, as 3.N; ok is
// false when it has no lower bound.
func (c constraint) lower() (minor int, ok bool) {
	for _, one := range c {
		if (one.op == ">=" || one.op == "==" || one.op == ">") && len(one.version) >= 2 && one.version[0] == 3 {
			minor, ok = max(minor, one.version[1]), true
		}
	}
	return minor, ok
}

func compare(a, b []int) int {
	for i := range max(len(a), len(b)) {
		x, y := 0, 0
		if i < len(a) {
			x = a[i]
		}
		if i < len(b) {
			y = b[i]
		}
		if x != y {
			return x - y
		}
	}
	return 0
}
