job "task-network" {
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
      resources {
        network {
          mbits = 20
          port "a" {
          }
          port "b" {
            static = 24710
          }
        }
      }
    }
  }
}
