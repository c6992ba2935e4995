package venv

import (
	"bytes"
	"cmp"
	"fmt"
	"regexp"
	"strings"

	"deps.dev/util/semver"
)

var (
	exact      = regexp.MustCompile(`^([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^\]]*\])?\s*===?\s*([^\s;,\\]+)`)
	separator  = regexp.MustCompile(`[-_.]+`)
	zeros      = regexp.MustCompile(`(?:\.0)+([a-z+]|\.[a-z]|$)`) // at the end of a version's numbers
	hashOption = regexp.MustCompile(`--hash[= ]\s*(\S+)`)
)

// line is a logical line of a requirements file.
type line struct {
	number int // where it begins, from 1
	text   string
}

// logical returns the lines of a requirements file as pip joins them: continuations joined,
// without comments and empty lines.
func logical(data []byte) (lines []line) {
	text := strings.ReplaceAll(string(bytes.TrimPrefix(data, []byte("\ufeff"))), "\r\n", "\n")
	var joined strings.Builder
	began, number := 0, 0
	for one := range strings.SplitSeq(text+"\n", "\n") { // the last line may be continued, too
		if number++; began == 0 {
			began = number
		}
		comment := strings.HasPrefix(strings.TrimSpace(one), "#")
		if strings.HasSuffix(one, `\`) && !comment {
			joined.WriteString(strings.TrimRight(one, `\`))
			continue
		}
		if comment {
			one = " " + one
		}
		whole := strings.ReplaceAll(joined.String()+one, "\t", " ")
		if n := strings.Index(" "+whole, " #"); n >= 0 {
			whole = whole[:n]
		}
		if whole = strings.Trim(whole, " "); whole != "" {
			lines = append(lines, line{began, whole})
		}
		joined.Reset()
		began = 0
	}
	return lines
}

// release is the normalized package and version of a requirement; empty unless it names
// exactly one version.
func release(line string) string {
	found := exact.FindStringSubmatch(line)
	if found == nil {
		return ""
	}
	version := strings.ToLower(found[2])
	if v, err := semver.PyPI.Parse(version); err == nil {
		version = strings.NewReplacer("-", ".", "_", ".").Replace(v.Canon(true)) // of its local part
	}
	return normalized(found[1]) + "==" + zeros.ReplaceAllString(version, "$1")
}

// lockLine is one package of a lock.
type lockLine struct {
	text    string   // a line of a requirements file, without hashes
	hashes  []string // "sha256:…"
	name    string   // normalized; empty for a path without one
	release string   // name==version; empty for a path or an address
	at      string   // the path or the address; empty for a release
}

// packages are those of a lock. uv writes a version for every package of a package index; a
// package without one is a path or an address.
func packages(lock []byte) (all []lockLine) {
	for _, line := range logical(lock) {
		text := strings.TrimPrefix(line.text, "-e ") // older locks have it
		l := lockLine{text: strings.TrimSpace(hashOption.ReplaceAllString(text, ""))}
		for _, one := range hashOption.FindAllStringSubmatch(text, -1) {
			l.hashes = append(l.hashes, one[1])
		}
		if l.release = release(l.text); l.release != "" {
			l.name, _, _ = strings.Cut(l.release, "==")
		} else {
			name, place, named := strings.Cut(l.text, " @ ")
			if !named {
				name, place = "", l.text
			}
			name, _, _ = strings.Cut(name, "[")
			place, _, _ = strings.Cut(place, " ;")
			l.name, l.at = normalized(strings.TrimSpace(name)), strings.TrimSpace(place)
		}
		all = append(all, l)
	}
	return all
}

// textOf writes packages as uv does.
func textOf(all []lockLine) string {
	var text strings.Builder
	for _, l := range all {
		text.WriteString(strings.Join(append([]string{l.text}, l.hashes...), " \\\n    --hash=") + "\n")
	}
	return text.String()
}

// file names the download: a release, else a path or an address.
func (l lockLine) file() string { return cmp.Or(l.release, withoutFragment(l.at)) }

// wheel reports whether the package's path or address is a wheel.
func (l lockLine) wheel() bool {
	return strings.HasSuffix(strings.ToLower(withoutFragment(l.at)), ".whl")
}

// namesOf names packages for people.
func namesOf(all []lockLine) (names []string) {
	for _, l := range all {
		names = append(names, cmp.Or(l.name, l.at))
	}
	return names
}

// placeIn returns the package with another path or address.
func (l lockLine) placeIn(at string) lockLine {
	l.text, l.at = strings.Replace(l.text, l.at, at, 1), at
	return l
}

func withoutFragment(address string) string {
	address, _, _ = strings.Cut(address, "#")
	return address
}

// hold replaces the hashes of a lock, which uv made of tree, by those that the index demands.
// uv checks these when it installs, but takes the package index's own when it locks: a file
// that was replaced there since the author wrote the hash would be accepted. With all, every
// package needs a hash.
func hold(lock []lockLine, requirements []requirement, tree string, all bool) error {
	pins := map[string][]string{}
	for _, q := range requirements {
		if len(q.hashes) > 0 {
			key := packages([]byte(q.write(tree)))[0].file()
			pins[key] = append(pins[key], q.hashes...)
		}
	}
	for i, l := range lock {
		if hashes, ok := pins[l.file()]; ok {
			lock[i].hashes = hashes
		} else if all {
			return fmt.Errorf("%s is needed and has no --hash, which --require-hashes demands", strings.Fields(l.text)[0])
		}
	}
	return nil
}
