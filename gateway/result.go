package gateway

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/tool"
)

const (
	// resultURI is the prefix of the URIs of whole results.
	resultURI = "mesh://results/"
	// shortenedKey marks a result whose structured content is cut.
	shortenedKey = "toolmesh/shortened"
	// cutDepth is how deep lists and objects are cut: each level reads all of its value.
	cutDepth = 16
)

// shorten cuts a result to the size of a model's context. Texts get a link to the whole text in the mesh's store,
// where any gateway reads it. Structured content is cut only if it still fits the schema, as clients refuse a
// result without it, unless the result is an error.
func (v *view) shorten(ctx context.Context, t *catalogTool, value json.RawMessage, result *mcp.CallToolResult) {
	most := v.m.of.g.opts.MCPResultMax
	left, note := most, ""
	var content []mcp.Content
	for _, one := range result.Content {
		content = append(content, one)
		text, ok := one.(*mcp.TextContent)
		if !ok {
			continue
		}
		length := utf8.RuneCountInString(text.Text)
		if length <= left {
			left -= length
			continue
		}
		whole := text.Text
		text.Text, left = beginning(whole, left), 0
		note = fmt.Sprintf("The result has %d characters; this is its beginning.", length)
		link, err := v.store(ctx, whole)
		if err != nil {
			note += " The rest cannot be read: " + toolmesh.AsError(err).Message
		} else {
			note += " All of it is in the resource " + link.URI + " for 15 minutes."
			content = append(content, link)
		}
		content = append(content, &mcp.TextContent{Text: note})
	}
	result.Content = content
	if result.StructuredContent == nil || utf8.RuneCount(value) <= most {
		return
	}
	result.Meta[shortenedKey] = true
	note = cmp.Or(note, "The structured content is cut: the content has all of the result.")
	if result.StructuredContent = t.cutStructured(value, note, most); result.StructuredContent == nil {
		result.IsError = true
		result.Content = append(result.Content, &mcp.TextContent{Text: "The tool has run, and its result is too large for structured content that fits the tool's schema: do not call it again for this."})
	}
}

// cutStructured returns structured content of about most bytes that fits the tool's schema, nil if no cut does. It
// adds the note where the schema accepts further members.
func (t *catalogTool) cutStructured(value json.RawMessage, note string, most int) any {
	schema, _ := t.tool.OutputSchema.(json.RawMessage)
	fits, err := tool.Compile(schema)
	if err != nil {
		return nil
	}
	said, _ := tool.MarshalPlain(map[string]string{shortenedKey: note})
	depth := cutDepth
	if len(value) > hrefBytes { // each level holds all of it
		depth = 4
	}
	for _, drop := range []bool{false, true} {
		part, err := t.shown.StructuredContent(cut(value, most, drop, depth))
		if err != nil || len(part) > 2*most {
			continue
		}
		for _, one := range []json.RawMessage{append(append(said[:len(said)-1:len(said)-1], ','), part[1:]...), part} {
			if wrong, err := fits.CheckResult(one); wrong == nil && err == nil {
				return one
			}
		}
	}
	return nil
}

// cut returns a value of about most bytes: the beginning of a text, the first items of a list, or an object with
// each member cut to its share. drop leaves out members that have no room.
func cut(value json.RawMessage, most int, drop bool, depth int) json.RawMessage {
	var (
		text  string
		items []json.RawMessage
		body  []byte
	)
	switch {
	case len(value) <= most || depth == 0:
		return value
	case json.Unmarshal(value, &text) == nil:
		for n := most; ; n = n * most / (len(body) + 1) { // escapes take more
			if body, _ = tool.MarshalPlain(beginning(text, n) + "…"); len(body) <= most || n == 0 {
				return body
			}
		}
	case bytes.HasPrefix(bytes.TrimSpace(value), []byte("[")):
		d := json.NewDecoder(bytes.NewReader(value)) // reads no more items than there is room for
		_, _ = d.Token()
		items = []json.RawMessage{}
		for one := (json.RawMessage)(nil); d.More() && d.Decode(&one) == nil && (len(items) == 0 || len(one) < most); one = nil {
			items = append(items, cut(one, most, drop, depth-1))
			most -= len(items[len(items)-1]) + len(",")
		}
		body, _ = tool.MarshalPlain(items)
	case bytes.HasPrefix(bytes.TrimSpace(value), []byte("{")):
		members, rest := membersOf(value, max(most, 1000)) // of a small share, each gets the least
		if rest && !drop {
			return value
		}
		names := slices.SortedFunc(maps.Keys(members), func(a, b string) int {
			return cmp.Or(cmp.Compare(len(members[a]), len(members[b])), cmp.Compare(a, b))
		})
		for i, name := range names { // small ones first: the rest share the remaining bytes
			own := len(name) + len(`"":,`)
			if drop && own+len(members[name]) > most {
				delete(members, name)
				continue
			}
			if !drop {
				members[name] = cut(members[name], max(0, most/(len(names)-i)-own), drop, depth-1)
			}
			most -= own + len(members[name])
		}
		body, _ = tool.MarshalPlain(members)
	default: // a number
		return value
	}
	return body
}

// membersOf returns at most so many members of an object, and whether there are more: in a map they take many times
// the size of their text.
func membersOf(value json.RawMessage, most int) (members map[string]json.RawMessage, rest bool) {
	members = make(map[string]json.RawMessage)
	d := jsontext.NewDecoder(bytes.NewBuffer(value), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	_, err := d.ReadToken()
	for err == nil && d.PeekKind() == '"' && len(members) < most {
		name, wrong := d.ReadToken()
		called := name.String() // before the next read
		one, bad := d.ReadValue()
		err = cmp.Or(wrong, bad)
		members[called] = json.RawMessage(bytes.Clone(one))
	}
	return members, err != nil || d.PeekKind() != '}'
}

// beginning returns the first characters of a text.
func beginning(text string, n int) string {
	for at := range text {
		if n--; n < 0 {
			return text[:at]
		}
	}
	return text
}

// store keeps a text for 15 minutes and returns its link.
func (v *view) store(ctx context.Context, text string) (*mcp.ResourceLink, error) {
	file, err := v.c.PutBytes(ctx, []byte(text))
	if err != nil {
		return nil, err
	}
	kind := "text/plain"
	if json.Valid([]byte(text)) {
		kind = "application/json"
	}
	id := base64.RawURLEncoding.EncodeToString([]byte(file.Ref + "\n" + file.Digest + "\n" + kind))
	return &mcp.ResourceLink{URI: resultURI + id, Name: "result", Description: "All of the result", MIMEType: kind, Size: new(file.Size)}, nil
}

// readResult handles resources/read of a link made by shorten.
func (v *view) readResult(ctx context.Context, q *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
	id, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(q.Params.URI, resultURI))
	parts := strings.Split(string(id), "\n")
	if err != nil || len(parts) != 3 || !utf8.Valid(id) {
		return nil, mcp.ResourceNotFoundError(q.Params.URI)
	}
	admit, release := v.m.of.bounded() // it may be any object of the session
	defer release()
	text, err := v.c.ReadBytes(ctx, tool.File{Ref: parts[0], Digest: parts[1]}, admit)
	switch {
	case toolmesh.CodeOf(err) == toolmesh.CodeNotFound:
		return nil, mcp.ResourceNotFoundError(q.Params.URI)
	case err != nil:
		return nil, rpcError(err)
	}
	return &mcp.ReadResourceResult{
		Contents:  []*mcp.ResourceContents{{URI: q.Params.URI, MIMEType: parts[2], Text: string(text)}},
		Cacheable: cacheable,
	}, nil
}

// resultOf returns a tool's result in MCP's form.
func (t *catalogTool) resultOf(value json.RawMessage) *mcp.CallToolResult {
	result := &mcp.CallToolResult{Content: contentBlocks(value)}
	if t.tool.OutputSchema != nil {
		if block := typedBytes(t.output, value); block != nil {
			result.Content = []mcp.Content{block}
		}
		if structured, err := t.shown.StructuredContent(value); err == nil {
			result.StructuredContent = structured
		}
	}
	if result.Content == nil {
		result.Content = []mcp.Content{&mcp.TextContent{Text: (&batchResult{Result: value}).text()}}
	}
	return result
}

// typedBytes returns a result as an image or a sound if its schema says so.
func typedBytes(schema, value json.RawMessage) mcp.Content {
	var says struct {
		Encoding string `json:"contentEncoding"`
		Media    string `json:"contentMediaType"`
	}
	var text string
	if json.Unmarshal(schema, &says) != nil || says.Encoding != "base64" || json.Unmarshal(value, &text) != nil {
		return nil
	}
	data, err := base64.StdEncoding.DecodeString(text)
	switch {
	case err != nil:
		return nil
	case strings.HasPrefix(says.Media, "image/"):
		return &mcp.ImageContent{Data: data, MIMEType: says.Media}
	case strings.HasPrefix(says.Media, "audio/"):
		return &mcp.AudioContent{Data: data, MIMEType: says.Media}
	}
	return nil
}

// contentBlocks returns the content blocks of a result in MCP's own form: one block, or a list of only blocks, each
// without members unknown to MCP. It returns nil for any other result.
func contentBlocks(value json.RawMessage) []mcp.Content {
	list := bytes.TrimSpace(value)
	if bytes.HasPrefix(list, []byte("{")) {
		list = append(append([]byte("["), list...), ']')
	}
	var result mcp.CallToolResult
	if !bytes.HasPrefix(list, []byte("[")) || !likeBlocks(list) || json.Unmarshal(append(append([]byte(`{"content":`), list...), '}'), &result) != nil || len(result.Content) == 0 {
		return nil
	}
	var given, read any
	written, err := json.Marshal(result.Content)
	if err != nil || json.Unmarshal(list, &given) != nil || json.Unmarshal(written, &read) != nil || !reflect.DeepEqual(given, read) {
		return nil
	}
	return result.Content
}

// mostBlocks is the max number of blocks of a result: the SDK takes a kilobyte for each.
const mostBlocks = 1000

// asideMost is the max bytes of a block's _meta, annotations and icons: the SDK reads them into many times their size.
const asideMost = 64 << 10

// likeBlocks reports whether all items of a list look like content blocks. It holds one item at a time.
func likeBlocks(list []byte) bool {
	d := json.NewDecoder(bytes.NewReader(list))
	d.DisallowUnknownFields() // the SDK would read them first
	_, err := d.Token()
	for n := 0; err == nil && d.More(); n++ {
		var one struct {
			Type, Text, Data, URI, Name, Title, Description, MIMEType string

			Size               *int64
			Annotations, Icons json.RawMessage
			Meta               json.RawMessage `json:"_meta"`
			Resource           *struct {
				URI, MIMEType, Text, Blob string
				Meta                      json.RawMessage `json:"_meta"`
			}
		}
		err = d.Decode(&one)
		aside := len(one.Annotations) + len(one.Icons) + len(one.Meta)
		if one.Resource != nil {
			aside += len(one.Resource.Meta)
		}
		whole := map[string]bool{"text": true, "image": true, "audio": true, "resource": one.Resource != nil, "resource_link": one.URI != "" && one.Name != ""}
		if n == mostBlocks || aside > asideMost || !whole[one.Type] {
			return false
		}
	}
	return err == nil
}
