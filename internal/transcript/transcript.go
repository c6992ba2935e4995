package transcript

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/tools/txtar"
)

// Speaker is the side that says a message.
type Speaker string

// The speakers. The broker answers where no host does.
const (
	Client Speaker = "client"
	Host   Speaker = "host"
	Broker Speaker = "broker"
)

// kinds are the messages that each speaker has.
var kinds = map[Speaker][]string{
	Client: {"call", "cancel", "credit", "replay"},
	Host:   {"result", "error", "refusal", "ack", "chunk", "keepalive", "end", "high", "cancelled", "heartbeat", "silence"},
	Broker: {"503"},
}

// Step is one message, or for the kind "silence" the absence of one.
type Step struct {
	Name    string // the section's name, for messages of tests
	Speaker Speaker
	Kind    string
	Subject string
	Reply   string // "" where the message has none
	Header  map[string][]string
	Body    []byte
	Raw     string // the message as the file has it
	Read    []byte // JSON: the client's message as a host reads it; nil if the file has none
}

// Transcript is one file.
type Transcript struct {
	Name  string // of the file, without .txtar
	Prose string
	Tool  []byte // JSON: the behaviour of the called tool; nil if none is called
	Steps []Step
}

// Parse reads one transcript. Placeholders such as $NODE are replaced by values,
// whose keys are without the dollar; others stay as they are.
func Parse(name string, data []byte, values map[string]string) (*Transcript, error) {
	var pairs []string
	for key, value := range values {
		pairs = append(pairs, "$"+key, value)
	}
	fill := strings.NewReplacer(pairs...)
	archive := txtar.Parse(data)
	c := &Transcript{Name: name, Prose: string(archive.Comment)}
	if strings.TrimSpace(c.Prose) == "" {
		return nil, fmt.Errorf("transcript %s: it has no prose at the top that says what it guards", name)
	}
	for _, section := range archive.Files {
		title, text := fill.Replace(section.Name), fill.Replace(string(section.Data))
		var err error
		switch {
		case title == "tool":
			c.Tool = bytes.TrimSpace([]byte(text))
		case title == "read":
			err = c.read(text)
		default:
			err = c.step(title, text)
		}
		if err != nil {
			return nil, fmt.Errorf("transcript %s, section %q: %w", name, section.Name, err)
		}
	}
	if len(c.Steps) == 0 {
		return nil, fmt.Errorf("transcript %s: it has no message", name)
	}
	return c, nil
}

func (c *Transcript) read(text string) error {
	if len(c.Steps) == 0 || c.Steps[len(c.Steps)-1].Speaker != Client || c.Steps[len(c.Steps)-1].Read != nil {
		return fmt.Errorf("a section \"read\" follows a message of the client, once")
	}
	c.Steps[len(c.Steps)-1].Read = bytes.TrimSpace([]byte(text))
	return nil
}

func (c *Transcript) step(title, text string) error {
	words := strings.Fields(title)
	if len(words) < 2 || !slices.Contains(kinds[Speaker(words[0])], words[1]) {
		return fmt.Errorf("the name of a section begins with a speaker and a kind: %v", kinds)
	}
	s := Step{Name: title, Speaker: Speaker(words[0]), Kind: words[1], Raw: text}
	switch words = words[2:]; {
	case s.Kind == "silence" && len(words) == 0:
		c.Steps = append(c.Steps, s)
		return nil
	case len(words) == 1:
		s.Subject = words[0]
	case len(words) == 3 && words[1] == "reply" && s.Speaker == Client:
		s.Subject, s.Reply = words[0], words[2]
	default:
		return fmt.Errorf("after the kind come a subject and, for a client, a reply subject: SUBJECT reply SUBJECT")
	}
	var err error
	if s.Header, s.Body, err = message(text); err != nil {
		return err
	}
	c.Steps = append(c.Steps, s)
	return nil
}

// message reads header lines, an empty line, and the body, whose last line end
// belongs to the file.
func message(text string) (header map[string][]string, body []byte, err error) {
	for {
		line, rest, ok := strings.Cut(text, "\n")
		if !ok {
			return nil, nil, fmt.Errorf("an empty line must stand between headers and body, even where one of them is missing")
		}
		text = rest
		if line == "" {
			return header, []byte(strings.TrimSuffix(text, "\n")), nil
		}
		name, value, ok := strings.Cut(line, ":")
		if !ok {
			return nil, nil, fmt.Errorf("%q is not a header", line)
		}
		if header == nil {
			header = make(map[string][]string)
		}
		header[name] = append(header[name], strings.TrimPrefix(value, " "))
	}
}

// Text renders a message as the files have it: headers in the order of their
// names, an empty line, and the body.
func Text(header map[string][]string, body []byte) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(header)) {
		for _, value := range header[name] {
			b.WriteString(strings.TrimRight(name+": "+value, " ") + "\n")
		}
	}
	b.WriteString("\n")
	if len(body) > 0 {
		b.Write(body)
		b.WriteString("\n")
	}
	return b.String()
}
