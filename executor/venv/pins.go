package venv

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
)

var (
	exact      = regexp.MustCompile(`^([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^\]]*\])?\s*===?\s*([^\s;,\\]+)`)
	separator  = regexp.MustCompile(`[-_.]+`)
	hashOption = regexp.MustCompile(`--hash[= ]\s*(\S+)`)
)

// line is a logical line of a requirements file.
type line struct {
	number int // where it begins, from 1
	text   string
}

// logical returns the lines of a requirements file as pip joins them: continued ones
// as one, without comments, and without those that are empty then.
func logical(data []byte) (lines []line) {
	text := strings.ReplaceAll(string(bytes.TrimPrefix(data, []byte("\ufeff"))), "\r\n", "\n")
	var joined strings.Builder
	began, number := 0, 0
	for one := range strings.SplitSeq(text, "\n") {
		if number++; began == 0 {
			began = number
		}
		comment := strings.HasPrefix(strings.TrimSpace(one), "#")
		if strings.HasSuffix(one, `\`) && !comment {
			joined.WriteString(strings.TrimRight(one, `\`))
			continue
		}
		if comment {
			joined.WriteString(" ")
		}
		joined.WriteString(one)
		lines = appendLine(lines, began, joined.String())
		joined.Reset()
		began = 0
	}
	return appendLine(lines, began, joined.String())
}

func appendLine(lines []line, number int, text string) []line {
	text = strings.ReplaceAll(text, "\t", " ")
	if n := strings.Index(" "+text, " #"); n >= 0 {
		text = text[:n]
	}
	if text = strings.Trim(text, " "); text != "" {
		lines = append(lines, line{number, text})
	}
	return lines
}

// release names the package and version of a requirement in one way, however it
// is written; empty unless it says exactly one version.
func release(line string) string {
	found := exact.FindStringSubmatch(line)
	if found == nil {
		return ""
	}
	version := strings.ToLower(strings.TrimPrefix(found[2], "v"))
	for strings.HasSuffix(version, ".0") {
		version = strings.TrimSuffix(version, ".0")
	}
	return normalized(found[1]) + "==" + version
}

// pinned names the file that a line is about: a release, else a path or an address.
func pinned(line string) string {
	if release := release(line); release != "" {
		return release
	}
	_, place, _ := cutPlace(line)
	return withoutFragment(place)
}

// cutPlace splits the line of a path or an address: "name @ ", the place, and the rest.
func cutPlace(line string) (name, place, rest string) {
	if n := strings.Index(line, " @ "); n >= 0 {
		name, line = line[:n+3], line[n+3:]
	}
	end := len(line)
	for _, mark := range []string{" ;", ` \`, " --"} {
		if n := strings.Index(line, mark); n >= 0 {
			end = min(end, n)
		}
	}
	return name, strings.TrimSpace(line[:end]), line[end:]
}

func withoutFragment(address string) string {
	address, _, _ = strings.Cut(address, "#")
	return address
}

// hold writes the hashes that an index demands in place of those that uv found in a
// lock, which it made of that tree. uv checks them when it installs, but when it makes the
// lock it takes what the package index says, so that a file that was changed there since
// the author wrote them would be taken too. With all the index demands every one.
func hold(lock []byte, requirements []requirement, tree string, all bool) ([]byte, error) {
	pins := map[string][]string{}
	for _, q := range requirements {
		if len(q.hashes) > 0 {
			key := pinned(q.write(tree))
			pins[key] = append(pins[key], q.hashes...)
		}
	}
	if len(pins) == 0 && !all {
		return lock, nil
	}
	var out strings.Builder
	for _, line := range logical(lock) {
		hashes, ok := pins[pinned(line.text)]
		if !ok && all {
			return nil, fmt.Errorf("%s is needed and has no --hash, which --require-hashes demands", strings.Fields(line.text)[0])
		}
		if !ok {
			for _, one := range hashOption.FindAllStringSubmatch(line.text, -1) {
				hashes = append(hashes, one[1])
			}
		}
		out.WriteString(strings.TrimSpace(hashOption.ReplaceAllString(line.text, "")))
		for _, one := range hashes {
			out.WriteString(" \\\n    --hash=" + one)
		}
		out.WriteString("\n")
	}
	return []byte(out.String()), nil
}
