# An artifact with the right checksum is executed.
# before: printf '#!/bin/sh\necho tool 1.0\n' > $DIR/tool; sha256sum $DIR/tool | cut -d' ' -f1 > $DIR/sum; printf 'dir = "%s"\nsum = "%s"\n' $DIR $(cat $DIR/sum) > $DIR/vars
# args: --var-file $DIR/vars
# prints: tool 1.0

variable "dir" {
  type = string
}

variable "sum" {
  type = string
}

job "tool" {
  type = "batch"

  group "tool" {
    task "tool" {
      driver = "exec"

      artifact {
        source      = "${var.dir}/tool"
        destination = "local/tool"
        mode        = "file"

        options {
          checksum = "sha256:${var.sum}"
        }
      }

      config {
        command = "local/tool"
      }
    }
  }
}
