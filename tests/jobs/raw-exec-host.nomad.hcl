# A raw_exec task sees the host's files.
# before: echo on the host > $DIR/note; chmod 644 $DIR/note
# args: --var note=$DIR/note
# prints: on the host

variable "note" {
  type = string
}

job "raw" {
  type = "batch"

  group "raw" {
    task "raw" {
      driver = "raw_exec"

      config {
        command = "/bin/cat"
        args    = [var.note]
      }

      logs {
        max_files     = 2
        max_file_size = 1
      }
    }
  }
}
