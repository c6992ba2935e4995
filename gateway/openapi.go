package gateway

import (
	"bytes"
	"cmp"
	_ "embed" // the document
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/inventory"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// document is the OpenAPI document without tools and without the answers to failures.
//
//go:embed openapi.json
var document []byte

// openAPI handles GET /openapi.json: one operation for each served tool, with its schemas.
func (q *request) openAPI() (any, error) {
	release, err := q.l.take(documents, 1)
	if err != nil {
		return nil, err
	}
	defer release()
	globs, err := subjects.ParseGlobs(q.r.URL.Query().Get("tools"))
	if err != nil {
		return nil, refused(toolmesh.CodeInvalidRequest, "tools: %w", err)
	}
	served, err := q.c.List(q.ctx)
	if err != nil {
		return nil, err
	}
	served = slices.DeleteFunc(served, func(t registry.ListedTool) bool {
		return t.State != registry.ToolServing || !globs.Match(t.ID) || !q.l.key.Tools.Match(t.ID)
	})
	_, all, err := q.about(served)
	if err != nil {
		return nil, err
	}
	var doc struct {
		Info       object            `json:"info"`
		Components map[string]object `json:"components"`
	}
	paths, rest := make(object, len(all)), make(object)
	if err := errors.Join(json.Unmarshal(document, &rest), json.Unmarshal(document, &doc)); err != nil {
		return nil, err
	}
	doc.Info["version"] = q.g.opts.Version
	addFailures(doc.Components["responses"])
	rest["info"], rest["components"], rest["paths"] = doc.Info, doc.Components, paths
	for _, raw := range all {
		d, err := inventory.DescriptorOf(raw)
		if err != nil {
			return nil, err
		}
		if len(d.InputSchema) > 0 { // empty if it was removed meanwhile
			paths["/v1/tools/"+url.PathEscape(string(d.ID))] = object{"post": operation(d, doc.Components)}
		}
	}
	return tagged(rest)
}

// operation is the call of a tool. It adds shared parts of its schemas to the components of the document.
func operation(d *tool.Descriptor, components map[string]object) object {
	schemas := components["schemas"]
	name := tool.ProviderName(d.ID)
	result := json.RawMessage("{}")
	if len(d.OutputSchema) > 0 {
		result = placed(d.OutputSchema, name+"_result", schemas)
	}
	results := object{"application/json": object{"schema": result}}
	if d.Annotations.Streaming { // its result is the last item, if any, or the list of all
		whole := object{"anyOf": []any{result, object{"type": "null"}}}
		if d.Annotations.Collect {
			whole = object{"type": "array", "items": result}
		}
		results["application/json"] = object{"schema": whole}
		items := object{"schema": object{"type": "string", "description": "events item, complete and problem"}}
		results["text/event-stream"], results["application/x-ndjson"] = items, items
	}
	arguments := object{"schema": placed(d.InputSchema, name+"_arguments", schemas)}
	bodies := object{"application/json": arguments}
	if bytes.Contains(d.InputSchema, []byte(`"`+tool.FileFormat+`"`)) {
		bodies["multipart/form-data"] = object{"schema": object{"type": "object", "description": "a part for each argument: a file's bytes, or JSON"}}
	}
	answers := object{"200": object{"description": "the result", "content": results}}
	for status := range components["responses"] {
		answers[status] = object{"$ref": "#/components/responses/" + status}
	}
	var parameters []object
	for _, name := range slices.Sorted(maps.Keys(components["parameters"])) {
		parameters = append(parameters, object{"$ref": "#/components/parameters/" + name})
	}
	return object{
		"operationId": name, "summary": cmp.Or(firstLine(d.Description), string(d.ID)), "description": d.Description,
		"requestBody": object{"content": bodies, "required": needsArguments(d.InputSchema)},
		"parameters":  parameters,
		"responses":   answers,
	}
}

// needsArguments reports whether a schema of arguments requires one.
func needsArguments(schema json.RawMessage) bool {
	var top struct {
		Required []string `json:"required"`
	}
	return json.Unmarshal(schema, &top) == nil && len(top.Required) > 0
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return line
}

// addFailures adds the error responses of a call, by status.
func addFailures(all object) {
	texts := map[int][]string{
		http.StatusUnauthorized: {string(codeUnauthenticated)}, http.StatusMethodNotAllowed: {string(toolmesh.CodeInvalidRequest)},
		http.StatusUnsupportedMediaType: {string(toolmesh.CodeInvalidRequest)}, http.StatusRequestHeaderFieldsTooLarge: {"headers that are too large, as text"},
	}
	for _, code := range toolmesh.Codes() {
		texts[code.Number()] = append(texts[code.Number()], string(code))
	}
	for status, codes := range texts {
		slices.Sort(codes)
		problem := object{"schema": object{"$ref": "#/components/schemas/Problem"}}
		all[strconv.Itoa(status)] = object{"description": strings.Join(codes, ", "), "content": object{"application/problem+json": problem}}
	}
}

// placed returns a schema for the document. A schema with references to its own parts moves to schemas, under a
// name, with its $defs as neighbours: most generators of clients follow pointers from the document's root only.
func placed(schema json.RawMessage, name string, schemas object) json.RawMessage {
	var root any
	d := json.NewDecoder(bytes.NewReader(schema))
	d.UseNumber()
	if !bytes.Contains(schema, []byte(`"$ref"`)) || d.Decode(&root) != nil {
		return schema
	}
	base := "#/components/schemas/" + name
	defs := make(map[string]string) // names in schemas, by name in $defs
	put := func(name string, part any) {
		raw, _ := tool.MarshalPlain(part) // values have many times the size of their text
		schemas[name] = json.RawMessage(raw)
	}
	if top, ok := root.(object); ok {
		all, _ := top["$defs"].(object)
		for def := range all {
			defs[def] = name + "." + tool.ProviderName(subjects.ToolID(def)) // two tools may have the same one
		}
		refer(root, base, defs, false)
		for def, one := range all {
			put(defs[def], one)
		}
		delete(top, "$defs")
	}
	put(name, root)
	return json.RawMessage(fmt.Sprintf(`{"$ref":%q}`, base))
}

// refer turns a schema's references by pointer into references from the document's root. named says that the node's
// keys are names of schemas. A reference to an anchor stays, as the document has the anchor.
func refer(node any, base string, defs map[string]string, named bool) {
	switch v := node.(type) {
	case []any:
		for _, one := range v {
			refer(one, base, defs, false)
		}
	case object:
		for word, value := range v {
			switch ref, isText := value.(string); {
			case named:
				refer(value, base, defs, false)
			case word == "$ref" && isText && (ref == "#" || strings.HasPrefix(ref, "#/")):
				def, rest, _ := strings.Cut(strings.TrimPrefix(ref, "#/$defs/"), "/")
				if target, ok := defs[unescapePointer(def)]; ok && strings.HasPrefix(ref, "#/$defs/") {
					v[word] = strings.TrimSuffix("#/components/schemas/"+target+"/"+rest, "/")
				} else {
					v[word] = base + ref[1:]
				}
			case word == "const" || word == "enum" || word == "default" || word == "examples": // data
			default:
				refer(value, base, defs, word == "properties" || word == "patternProperties" || word == "$defs" || word == "definitions" || word == "dependentSchemas")
			}
		}
	}
}

func unescapePointer(part string) string {
	if decoded, err := url.PathUnescape(part); err == nil {
		part = decoded
	}
	return strings.NewReplacer("~1", "/", "~0", "~").Replace(part)
}
