job "task-config" {
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args = ["-c", "echo ${NOMAD_TASK_NAME}", 1, 2.5, true]
        empty = []
        empty_object = {}
        number = 12
        float = 0.25
        exponent = 1e3
        negative = -7
        none = null
        object = {
          a = 1
          b = {
            c = [1, 2]
          }
        }
        objects = [{ a = 1 }, { b = { c = 2 } }]
        nested = [[1, 2], ["a"]]
        block {
          x = 1
          inner {
            y = { z = 1 }
          }
          inner {
            y = 2
          }
        }
        labelled "one" {
          a = 1
        }
        labelled "two" "three" {
          b = 2
        }
      }
    }
  }
}
