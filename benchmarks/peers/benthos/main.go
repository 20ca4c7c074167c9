// Benthos with the components that the benchmark needs: its own command, SQS, and the processors and outputs of its core.
package main

import (
	"context"

	"github.com/benthosdev/benthos/v4/public/service"

	_ "github.com/benthosdev/benthos/v4/public/components/aws"
	_ "github.com/benthosdev/benthos/v4/public/components/io"
	_ "github.com/benthosdev/benthos/v4/public/components/pure"
)

func main() {
	service.RunCLI(context.Background())
}
