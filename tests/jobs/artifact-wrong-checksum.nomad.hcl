# An artifact with another checksum is refused, and nothing runs.
# before: echo changed > $DIR/tool
# args: --var dir=$DIR
# status: 125
# prints: wrong checksum
# never: Task started

variable "dir" {
  type = string
}

job "tool" {
  type = "batch"

  group "tool" {
    restart {
      attempts = 0
      mode     = "fail"
    }

    task "tool" {
      driver = "exec"

      artifact {
        source      = "${var.dir}/tool"
        destination = "local/tool"
        mode        = "file"

        options {
          checksum = "md5:d41d8cd98f00b204e9800998ecf8427e"
        }
      }

      config {
        command = "/bin/true"
      }
    }
  }
}
