job "group-network" {
  group "g" {
    network {
      port "dynamic" {
      }
      port "mapped" {
        to = 8080
      }
      port "fixed" {
        static = 24700
      }
      port "both" {
        static = 24701
        to = 80
        host_network = "public"
      }
    }
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
