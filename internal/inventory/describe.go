package inventory

import (
	"context"
	"encoding/json"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// describePage is how many tools the registry describes at once.
const describePage = 500

// Describe returns the registry's description of one tool.
func Describe(ctx context.Context, c *client.Client, id subjects.ToolID) (*tool.Descriptor, error) {
	var answer registry.DescribeAnswer
	err := c.Ask(ctx, registry.VerbDescribe, registry.Request{Tool: string(id)}, &answer)
	return answer.Descriptor, err
}

// DescriptorOf reads a tool that [Described] tells of.
func DescriptorOf(about json.RawMessage) (*tool.Descriptor, error) {
	d := new(tool.Descriptor)
	if err := json.Unmarshal(about, d); err != nil {
		return nil, toolmesh.Errorf(toolmesh.CodeProtocolError, "a tool's description cannot be read: %w", err)
	}
	return d, nil
}

// Described returns the descriptions of a page's tools, in its order, as `mesh info --json` prints
// them. A tool without a description is as in the list; one that was removed since is left out.
func Described(ctx context.Context, c *client.Client, page []registry.ListedTool, tell func(registry.ListedTool, json.RawMessage)) error {
	for len(page) > 0 {
		var ids []string
		for _, t := range page[:min(len(page), describePage)] {
			ids = append(ids, string(t.ID))
		}
		var answer registry.DescribedAnswer
		if err := c.Ask(ctx, registry.VerbDescribe, registry.Request{Tools: ids}, &answer); err != nil {
			return err
		}
		if len(answer.Tools) == 0 || len(answer.Tools) > len(page) {
			return toolmesh.Errorf(toolmesh.CodeProtocolError, "the registry describes %d of %d tools", len(answer.Tools), len(page))
		}
		for i, one := range answer.Tools {
			if string(one) != "null" {
				tell(page[i], one)
			} else if page[i].State != registry.ToolServing {
				one, _ = tool.MarshalPlain(page[i])
				tell(page[i], one)
			}
		}
		page = page[len(answer.Tools):]
	}
	return nil
}
