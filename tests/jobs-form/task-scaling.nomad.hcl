job "task-scaling" {
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
      scaling "cpu" {
        min = 50
        max = 500
        enabled = true
        policy {
          check "x" {
            strategy "y" {
            }
          }
        }
      }
      scaling "mem" {
        max = 512
      }
    }
  }
}
