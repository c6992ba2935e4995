package codec

import (
	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/subjects"
)

// ParseRequest is [ReadRequest] and [Request.Decode].
func ParseRequest(s subjects.Subject, h Header, body []byte) (*Request, *toolmesh.Error) {
	r, bad := ReadRequest(s, h, body)
	if bad == nil {
		bad = r.Decode()
	}
	return r, bad
}
