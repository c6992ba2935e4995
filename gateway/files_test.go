package gateway_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"io"
	"mime/multipart"
	"net/textproto"
	"os"
	"strings"
	"testing"

	"github.com/toolmesh/toolmesh/gateway"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/tool"
)

type fileArgs struct {
	File  tool.File `json:"file"`
	Title string    `json:"title,omitempty"`
	Times int       `json:"times,omitempty"`
}

type fileAnswer struct {
	File  tool.File `json:"file"`
	Title string    `json:"title"`
	Times int       `json:"times"`
}

// form is a multipart body.
func form(t *testing.T, parts ...string) (body string, h headers) {
	t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	for i := 0; i < len(parts); i += 2 {
		header := textproto.MIMEHeader{"Content-Disposition": {parts[i]}}
		if strings.Contains(parts[i], "filename") {
			header.Set("Content-Type", "text/html; charset=utf-8")
		}
		part, err := w.CreatePart(header)
		if err == nil {
			_, err = io.WriteString(part, parts[i+1])
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String(), headers{"Content-Type": w.FormDataContentType()}
}

// A file goes up as a part, larger than other bodies may be, and the file of a result is read at its href, as
// often as one likes, by its own session alone. Nothing of it stays on this machine.
func TestFiles(t *testing.T) {
	spool := t.TempDir()
	t.Setenv("TMPDIR", spool)
	r := newRig(t, func(o *gateway.Options) { o.MaxBody, o.MaxUpload = 1<<16, 8<<20 })
	if _, err := r.host.Handle("keep", host.Func(func(_ context.Context, in fileArgs) (fileAnswer, error) {
		return fileAnswer(in), nil
	})); err != nil {
		t.Fatal(err)
	}
	meshtest.Until(t, "keep is served", func() bool { return r.do(t, "GET", "/v1/tools/lab.keep", "", nil).status == 200 })
	random := make([]byte, 3<<20)
	_, _ = rand.Read(random)
	const part = `form-data; name="file"; filename="a/b<c>.html"`
	body, h := form(t, part, string(random), `form-data; name="title"`, "A title", `form-data; name="times"`, "3")
	var got struct {
		File struct {
			Ref, Name, Type, Href string
			Size                  int
		}
		Title string
		Times int
	}
	r.do(t, "POST", "/v1/tools/lab.keep", body, h).decode(t, 200, &got)
	if got.Title != "A title" || got.Times != 3 || got.File.Name != "b<c>.html" || got.File.Type != "text/html" || got.File.Size != len(random) || !strings.HasPrefix(got.File.Href, "/v1/files/") {
		t.Fatalf("%+v", got)
	}
	// By a name that a model may write, and with a text that reads as a number where the tool takes a text.
	number, nh := form(t, part, "x", `form-data; name="title"`, "5", `form-data; name="times"`, "[3]")
	if a := r.do(t, "POST", "/v1/tools/Lab-Keep", number, nh); a.status != 422 || !strings.Contains(a.body, `"/times"`) || strings.Contains(a.body, `"/title"`) {
		t.Errorf("%d %s", a.status, a.body)
	}
	number, nh = form(t, part, "x", `form-data; name="title"`, "5")
	if a := r.do(t, "POST", "/v1/tools/Lab-Keep", number, nh); a.status != 200 || !strings.Contains(a.body, `"title":"5"`) {
		t.Errorf("%d %s", a.status, a.body)
	}
	for range 2 {
		a := r.do(t, "GET", got.File.Href, "", nil)
		if a.status != 200 || a.body != string(random) {
			t.Fatalf("%d, %d bytes, %v", a.status, len(a.body), a.header)
		}
		if !strings.HasPrefix(a.header.Get("Content-Disposition"), "attachment") || a.header.Get("X-Content-Type-Options") != "nosniff" || a.header.Get("Content-Security-Policy") != "sandbox" {
			t.Errorf("a browser may take it for a page: %v", a.header)
		}
	}
	for what, c := range map[string]struct {
		path   string
		h      headers
		status int
	}{
		"another session":  {got.File.Href, as(r.token), 404},
		"another digest":   {strings.Replace(got.File.Href, "digest=", "digest=0", 1), nil, 404},
		"no digest":        {strings.SplitN(got.File.Href, "?", 2)[0], nil, 404},
		"no such file":     {"/v1/files/default.nothing?digest=x", nil, 404},
		"no name of files": {"/v1/files/%2e%2e%2fetc?digest=x", nil, 404},
	} {
		if a := r.do(t, "GET", c.path, "", c.h); a.status != c.status {
			t.Errorf("%s: %d %s", what, a.status, a.body)
		}
	}
	large, lh := form(t, part, strings.Repeat("x", 9<<20))
	text, th := form(t, `form-data; name="title"`, strings.Repeat("x", 1<<17), part, "x")
	twice, wh := form(t, part, "x", part, "y")
	unnamed, uh := form(t, `form-data; filename="x"`, "x")
	wrong, oh := form(t, part, "x", `form-data; name="times"`, "many")
	var names []string // their names are longer than other bodies may be
	for i := range 20 {
		names = append(names, `form-data; name="`+strings.Repeat("n", 1<<12)+string(rune('a'+i))+`"`, "")
	}
	long, gh := form(t, names...)
	title, ih := form(t, `form-data; name="file"; filename="`+strings.Repeat("n", 1<<17)+`"`, "x")
	for what, c := range map[string]struct {
		path, body string
		h          headers
		status     int
		code       string
	}{
		"too large":        {"/v1/tools/lab.keep", large, lh, 413, "payload_too_large"},
		"large text":       {"/v1/tools/lab.keep", text, th, 413, "payload_too_large"},
		"long names":       {"/v1/tools/lab.keep", long, gh, 413, "payload_too_large"},
		"a file's name":    {"/v1/tools/lab.keep", title, ih, 413, "payload_too_large"},
		"a part twice":     {"/v1/tools/lab.keep", twice, wh, 400, "invalid_request"},
		"no name":          {"/v1/tools/lab.keep", unnamed, uh, 400, "invalid_request"},
		"wrong value":      {"/v1/tools/lab.keep", wrong, oh, 422, "invalid_arguments"},
		"no such tool":     {"/v1/tools/lab.kept", body[:100], h, 404, "tool_not_found"},
		"cut off":          {"/v1/tools/lab.keep", body[:1000], h, 400, "invalid_request"},
		"no boundary":      {"/v1/tools/lab.keep", body[:1000], headers{"Content-Type": "multipart/form-data"}, 400, "invalid_request"},
		"parts elsewhere":  {"/v1/calls:batch", wrong, oh, 415, "invalid_request"},
		"a tool without":   {"/v1/tools/lab.add", wrong, oh, 422, "invalid_arguments"},
		"many small parts": {"/v1/tools/lab.keep", "", nil, 400, "invalid_request"},
	} {
		if what == "many small parts" {
			var parts []string
			for i := range 1001 {
				parts = append(parts, `form-data; name="p`+string(rune('a'+i%26))+strings.Repeat("x", i/26)+`"`, "1")
			}
			c.body, c.h = form(t, parts...)
		}
		if a := r.do(t, "POST", c.path, c.body, c.h); a.status != c.status || a.problem(t)["code"] != c.code {
			t.Errorf("%s: %d %.300s", what, a.status, a.body)
		}
	}
	if left, err := os.ReadDir(spool); err != nil || len(left) > 0 {
		for _, one := range left {
			if strings.HasPrefix(one.Name(), "mesh-upload-") {
				t.Errorf("%s is left", one.Name())
			}
		}
	}
	t.Setenv("TMPDIR", spool+"/missing")
	full, fh := form(t, part, "x")
	if a := r.do(t, "POST", "/v1/tools/lab.keep", full, fh); a.status != 503 || strings.Contains(a.body, spool) {
		t.Errorf("without a folder: %d %s", a.status, a.body)
	}
}
